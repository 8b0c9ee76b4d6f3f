"""``python -m attnprobe``."""

from attnprobe.cli import main

if __name__ == "__main__":
    main()
