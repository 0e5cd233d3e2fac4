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

// whole are names that stand for themselves: they are one word of a flag, not two, and two
// of them are not one.
func whole() []string {
	return []string{
		"api", "apis", "ca", "cas", "cidr", "cidrs", "cli", "cpu", "csr", "devid", "dns", "github", "gitlab", "hypershift", "id", "ids",
		"ip", "ips", "jwt", "kubevirt", "mac", "metallb", "oidc", "spire", "ssh", "tls", "tpm", "ttl", "uid", "uids", "uri", "url",
		"urls", "vm", "vms",
	}
}

// Flags goes through the flags of a command and of all below it.
func Flags(t *testing.T, cmd *cobra.Command) {
	t.Helper()

	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if what := wrong(flag.Name); what != "" {
			t.Errorf("%s --%s: %s", cmd.CommandPath(), flag.Name, what)
		}
	})

	for _, below := range cmd.Commands() {
		Flags(t, below)
	}
}

// wrong says what is wrong with a flag's name; empty: nothing.
func wrong(name string) string {
	words := strings.Split(name, "-")

	for i, word := range words {
		if len(word) < 2 || strings.ToLower(word) != word {
			return "there is no word " + word
		}

		for _, first := range whole() {
			if second, ok := strings.CutPrefix(word, first); ok && slices.Contains(whole(), second) && !slices.Contains(whole(), word) {
				return "it is " + first + "-" + second + ", not " + word
			}
		}

		if i > 0 && slices.Contains(whole(), words[i-1]+word) {
			return "it is " + words[i-1] + word + ", not " + words[i-1] + "-" + word
		}
	}

	return ""
}
