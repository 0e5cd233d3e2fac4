// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fixes

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/test/exe"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// timeout limits the commands of a message, for example one that waits for the end of a deletion.
const timeout = time.Minute

// argumentsPattern matches the arguments of a command in a message, up to a punctuation mark that ends a part of the
// sentence.
var argumentsPattern = regexp.MustCompile("^(?:'[^']*'|[^',;()`\n])+")

// Kubectl runs each command of kubectl that a message has, as an administrator of the cluster, and returns what the
// commands print. values are names that the message leaves to the person, each followed by its value. The test fails
// if a command fails, or if the message has no command.
func Kubectl(t testing.TB, env *kube.Env, message string, values ...string) []string {
	t.Helper()

	program, err := exe.FindTool("kubectl", "kubectl")
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()

	var out []string

	for _, command := range findCommands(message) {
		command = strings.NewReplacer(values...).Replace(command)

		cmd := exec.CommandContext(ctx, "sh", "-ec", "exec "+command) // #nosec G204 -- a command of our own message
		cmd.Env = []string{
			"PATH=" + filepath.Dir(program) + string(filepath.ListSeparator) + os.Getenv("PATH"), "HOME=" + t.TempDir(), "no_proxy=*",
			"KUBECONFIG=" + env.Kubeconfig(t, env.Config),
		}

		printed, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, printed)
		}

		out = append(out, string(printed))
	}

	if len(out) == 0 {
		t.Fatalf("the message has no command: %s", message)
	}

	return out
}

// findCommands returns the commands of kubectl in a message. Words that belong to the sentence end a command.
func findCommands(message string) []string {
	var out []string

	for _, rest := range strings.Split(message, "kubectl ")[1:] {
		arguments := argumentsPattern.FindString(rest)
		for _, word := range []string{" for ", " and ", " or ", " with the ", ". "} {
			arguments, _, _ = strings.Cut(arguments, word)
		}

		out = append(out, "kubectl "+strings.TrimRight(arguments, ". "))
	}

	return out
}
