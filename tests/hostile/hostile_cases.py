"""Values that nobody means."""

# an option's value, a word of a list, a name of a file
VALUES = (
    *("", " ", ",", "-1", "0", "1,2,", "5-1", "1-", "1e308", "-1e308", "nan", "inf", "999999999", "2-999999999"),
    *("9" * 25, "9" * 5000, "0x10", "١٢", "None", "true", "\x1b[31mred\x1b[0m", "\x9b2J", "\u202etxt.exe", "\udcff"),
    *("a\nb", "x" * 5000, "../..", "/dev/zero", "/proc/self/mem", "~nobody/x", ":", "=", "x:y=z", "vmean:="),
    *("vmean:seed=1:2", "%s%n", "{}", "=1+1", "日本語"),
)
