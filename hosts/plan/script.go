// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"
)

// Interpreter is the command that scripts are sent to, on standard input: the script and
// then what it reads. Neither is ever an argument, which other users of the host could
// see. Bash reads a script from a pipe byte by byte, so that the commands of the script
// read what follows it (POSIX, sh, "STDIN").
const Interpreter = "/bin/bash -s"

// Var is a variable that a script finds set.
type Var struct{ Name, Value string }

// Render gives the script of a body: strict mode, the variables, the body, and its call.
// The body defines main. Its call and the end are one line, which bash reads as a whole:
// what follows is left to main.
func Render(body string, vars ...Var) string {
	var b strings.Builder

	b.WriteString("#!/bin/bash\nset -euo pipefail\numask 077\n")

	for _, v := range vars {
		fmt.Fprintf(&b, "%s=%s\n", v.Name, Quote(v.Value))
	}

	b.WriteString("\n" + strings.TrimSpace(body) + "\n\nmain; exit 0\n")

	return b.String()
}

// Quote gives a text as one word of a shell.
func Quote(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// End is the line after a secret. A script that does not find it was cut off from its
// input, and changes nothing. Content has a digest in its script in place of that.
const End = "--- end of input ---"

// Input is what goes to the standard input of [Interpreter] to apply a part. It carries
// the secret of the part: keep it out of logs.
func (p Part) Input() string {
	if p.Secret.Empty() {
		return p.Apply + p.Content.String()
	}

	return p.Apply + strings.TrimSuffix(p.Secret.Reveal(), "\n") + "\n" + End + "\n"
}
