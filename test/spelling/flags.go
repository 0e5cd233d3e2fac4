// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package spelling

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// singleWords returns names that are exactly one word of a flag. A flag must not split one of them into two
// words, and must not join two of them into one word.
func singleWords() []string {
	return []string{
		"api", "apis", "ca", "cas", "cidr", "cidrs", "cli", "cpu", "csr", "devid", "dns", "github", "gitlab", "hypershift", "id", "ids",
		"ip", "ips", "jwt", "kubevirt", "mac", "metallb", "oidc", "spire", "ssh", "tls", "tpm", "ttl", "uid", "uids", "uri", "url",
		"urls", "vm", "vms",
	}
}

// CheckFlags fails the test for each misspelled flag of a command and its subcommands.
func CheckFlags(t *testing.T, cmd *cobra.Command) {
	t.Helper()

	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if problem := checkName(flag.Name); problem != "" {
			t.Errorf("%s --%s: %s", cmd.CommandPath(), flag.Name, problem)
		}
	})

	for _, below := range cmd.Commands() {
		CheckFlags(t, below)
	}
}

// checkName returns the spelling error in a flag name, "" if there is none.
func checkName(name string) string {
	words := strings.Split(name, "-")

	for i, word := range words {
		if len(word) < 2 || strings.ToLower(word) != word {
			return "the word \"" + word + "\" must be in lower case and have at least two letters"
		}

		for _, first := range singleWords() {
			second, ok := strings.CutPrefix(word, first)
			if ok && slices.Contains(singleWords(), second) && !slices.Contains(singleWords(), word) {
				return "write " + first + "-" + second + ", not " + word
			}
		}

		if i > 0 && slices.Contains(singleWords(), words[i-1]+word) {
			return "write " + words[i-1] + word + ", not " + words[i-1] + "-" + word
		}
	}

	return ""
}
