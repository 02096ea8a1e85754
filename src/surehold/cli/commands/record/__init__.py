"""Commands of recording and replay: exec, replay, check, bisect, savings."""
