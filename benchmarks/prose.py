"""English-like text: words drawn from a vocabulary with the frequencies of real prose."""

from __future__ import annotations

import random
from itertools import accumulate

__all__ = ["prose"]

_WORDS = """
the of and to a in is that it for was on are as with be at by this have from or had not but what
all were when we there can an your which their said if do will each about how up out them then she
many some so these would other into has more her two like him see time could no make than first
been its who now people my made over did down only way find use may water long little very after
words called just where most know get through back much before go good new write our used me man
too any day same right look think also around another came come work three word must because does
part even place well such here take why help put different away again off went old number great
tell men say small every found still between name should home big give air line set own under read
last never us left end along while might next sound below saw something thought both few those
always looked show large often together asked house world going want school important until form
food keep children feet land side without boy once animal life enough took four head above kind
began almost live page got earth need far hand high year mother light country father let night
following picture being study second soon story since white ever paper hard near sentence better
best across during today however sure knew try told young sun thing whole hear example heard
several change answer room sea against top turned learn point city play toward five himself
usually money seen car morning given order reach system report customer invoice payment account
request deadline meeting agenda summary budget forecast quarter revenue growth analysis review
estimate contract supplier delivery shipment warehouse inventory schedule delay risk decision
proposal approval manager engineer designer analyst research survey interview feedback feature
release version deployment server database network latency traffic error warning failure recovery
backup storage index query result record journal checkpoint state step agent model token prompt
context message tool search browser document paragraph chapter figure table column value measure
median variance sample trend signal noise threshold pattern evidence source reference citation
author publisher archive library museum gallery theatre orchestra melody rhythm canvas sculpture
harbour vessel captain voyage compass island mountain valley river forest meadow orchard garden
harvest season winter summer autumn spring weather temperature pressure humidity rainfall thunder
lightning climate energy turbine battery voltage circuit sensor engine vehicle bicycle railway
station platform passenger luggage ticket journey border passport embassy hotel kitchen recipe
ingredient flour butter sugar pepper garlic onion tomato potato doctor patient hospital medicine
treatment symptom diagnosis vaccine protein molecule enzyme bacteria virus tissue muscle nerve
blood heart kidney liver lawyer judge court verdict statute regulation policy election parliament
minister senator citizen council district mayor budgetary fiscal monetary inflation interest
mortgage pension insurance premium dividend shareholder merger acquisition bankruptcy auditor
teacher student university lecture exam homework scholarship laboratory experiment hypothesis
theory equation theorem proof geometry algebra statistics probability fraction decimal integer
matrix vector gravity velocity acceleration momentum friction particle electron proton neutron
galaxy planet asteroid satellite telescope orbit rocket astronaut crater eclipse horizon sunrise
twilight midnight breeze storm quietly carefully suddenly rarely nearly roughly exactly broadly
gently firmly brightly slowly quickly ancient modern fragile sturdy narrow shallow crooked smooth
bitter sour fresh stale vivid pale hollow gather scatter borrow lend repair replace observe
compare divide combine separate attach remove confirm deny propose reject accept refuse admit
conceal reveal describe explain persuade argue insist
"""
_VOCABULARY = _WORDS.split()
_ENDINGS = ("", "", "", "", "", "", "s", "ed", "ing", "er")
_NUMBER, _NAME = 0.03, 0.02


def prose(seed: int, length: int) -> str:
    """Make *length* characters of text: the same for the same seed, different for each seed."""
    chance = random.Random(seed)
    words: list[str] = []
    size, start = 0, True
    while size < length:
        draw = chance.random()
        if draw < _NUMBER:
            word = str(chance.randrange(1, 10_000))
        elif draw < _NUMBER + _NAME:
            word = "".join(chance.choices("abcdefghiklmnoprstuvwy", k=chance.randint(4, 9))).title()
        else:
            word = chance.choices(_VOCABULARY, cum_weights=_WEIGHTS)[0]
            word += chance.choice(_ENDINGS) if len(word) > 3 else ""
        if start:
            word = word.capitalize()
        start = chance.random() < 1 / 14
        words.append(word + (chance.choice("...?") if start else "," * (chance.random() < 0.06)))
        size += len(words[-1]) + 1
    return " ".join(words)[:length]


_WEIGHTS = list(accumulate(1 / (rank + 2.7) for rank in range(len(_VOCABULARY))))
