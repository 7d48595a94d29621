"""Texts that a model may hold, which a terminal, Markdown, HTML, XML or GitHub could take for something else."""

TEXTS = (
    "<script>alert(1)</script></code></pre></details><img src=x onerror=alert(1)>",
    "| a | b |\n|---|---|\n# heading\n```\n* item [link](https://x.test) ![image](y) `code` ~~gone~~ &amp; &#60;b&#62;",
    "::error file=a::b\n::set-output name=x::y\n##[command]z %0A::add-mask::1",
    "]]> <![CDATA[ <!-- --> <?xml?> &entity; \x00\x01\x08\x0b\x1b[2J\x7f\x85\u2028\u202e\ud800\ufffe\uffff",
    "  two  \r\n lines \t ",
    "",
    "ünïcode ✓ 漢字 " * 200,
    "a" * 100_000,
)
