// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"
	"unicode"
)

// Interpreter is the command that runs scripts. Its standard input is the script followed by the
// script's input. Neither is ever an argument, because other users of the host could see arguments.
// Bash reads a script from a pipe byte by byte, so that the commands of the script can read the
// rest of the input (POSIX, sh, "STDIN").
const Interpreter = "/bin/bash -s"

// Var is a variable that is set in a script.
type Var struct{ Name, Value string }

// Render returns a script with strict mode, the variables, the body and a call of main, which the
// body must define. It leaves the comments of the body out, because a changed comment is no reason to
// push a script again. The call and the exit are on one line. Bash reads this line as a whole, so the
// rest of the input is left for main.
func Render(body string, vars ...Var) string {
	var b strings.Builder

	b.WriteString("#!/bin/bash\nset -euo pipefail\numask 077\n")

	for _, v := range vars {
		fmt.Fprintf(&b, "%s=%s\n", v.Name, Quote(v.Value))
	}

	b.WriteString("\n" + strings.TrimSpace(removeComments(body)) + "\n\nmain; exit 0\n")

	return b.String()
}

// removeComments removes the lines of a script that are comments or empty. It keeps lines within quotes,
// and returns a script with a here-document unchanged.
func removeComments(body string) string {
	if strings.Contains(body, "<<") {
		return body
	}

	var (
		out   strings.Builder
		quote rune
	)

	for line := range strings.Lines(body) {
		code := strings.TrimSpace(line)
		if quote == 0 && (code == "" || code[0] == '#') {
			continue
		}

		out.WriteString(line)

		quote = quoteAfter(line, quote)
	}

	return out.String()
}

// quoteAfter returns the quote character that is open after a line, or 0 if none is. quote is the one that is
// open before the line.
func quoteAfter(line string, quote rune) rune {
	isEscaped, previous := false, ' '

	for _, char := range line {
		switch {
		case isEscaped:
			isEscaped = false
		case char == '\\' && quote != '\'':
			isEscaped = true
		case quote == 0 && char == '#' && unicode.IsSpace(previous):
			return 0 // the rest is a comment
		case quote == 0 && (char == '\'' || char == '"'):
			quote = char
		case char == quote:
			quote = 0
		}

		previous = char
	}

	return quote
}

// Quote returns the text as one shell word.
func Quote(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// EndMarker is the line after a secret. A script that does not find the marker got truncated input,
// and changes nothing. For content, the script checks a digest instead.
const EndMarker = "--- end of input ---"

// Input returns the standard input of [Interpreter] that applies a part. It contains the part's
// secret and must not be logged.
func (p Part) Input() string {
	if p.Secret.IsEmpty() {
		return p.Apply + p.Content.String()
	}

	return p.Apply + strings.TrimSuffix(p.Secret.Reveal(), "\n") + "\n" + EndMarker + "\n"
}
