"""A call that fails is made again, with pauses that grow; a mistake of the caller is not.

$ python retry.py
"""

import surehold


@surehold.step(retries=5, backoff=0.01, max_backoff=10, non_retryable=PermissionError)
def fetch(page: str) -> str:
    with open("attempts", "a+") as file:
        file.write(".")
        file.seek(0)
        attempt = len(file.read())
    if attempt < 3:
        raise ConnectionError(f"attempt {attempt} failed")
    print("fetch", page)
    return page.upper()


@surehold.workflow
def crawl(page: str) -> str:
    return fetch(page)


if __name__ == "__main__":
    print(crawl.run("front", run_id="crawl-1").value)
