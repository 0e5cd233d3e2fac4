// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/log"
)

func TestGuardIsAScript(t *testing.T) {
	t.Parallel()

	for _, argv := range [][]string{{"bash", "-n"}, {"shellcheck", "--shell=bash", "-"}} {
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Stdin = strings.NewReader(guard)

		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", argv[0], err, out)
		}
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()

	kubeconfig := log.NewSecret("apiVersion: v1\nusers:\n- user: {token: eyJhbGciOiJSUzI1NiJ9}\n")

	cases := map[string]struct {
		text    string
		secrets []log.Secret
		want    string
	}{
		"no secret":            {"text", nil, "text"},
		"an empty secret":      {"text", []log.Secret{{}, log.NewSecret(""), log.NewSecret("\n")}, "text"},
		"a short secret":       {"pw is pw", []log.Secret{log.NewSecret("pw\n")}, "REDACTED is REDACTED"},
		"a line of the secret": {"bad: - user: {token: eyJhbGciOiJSUzI1NiJ9}!", []log.Secret{kubeconfig}, "bad: REDACTED!"},
		"a word of the secret": {"bad token eyJhbGciOiJSUzI1NiJ9}", []log.Secret{kubeconfig}, "bad token REDACTED"},
		"common words":         {"users: apiVersion: v1", []log.Secret{kubeconfig}, "users: REDACTED"},
		"one secret in another": {
			"secret-and-more-of-it", []log.Secret{log.NewSecret("secret"), log.NewSecret("secret-and-more-of-it")}, "REDACTED",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if got := redact(tc.text, tc.secrets...); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// Whatever a host prints, a message contains one short line of text without the secret.
func FuzzLast(f *testing.F) {
	f.Add("one\ntwo\r\n", 3)
	f.Add("\x1b[31m\xff\xfe", 20_000)
	f.Add(strings.Repeat("x", 5000), 1)

	f.Fuzz(func(t *testing.T, text string, times int) {
		const secret = "0123456789-abcdef-0123456789"

		var kept tailBuffer

		trimmed := strings.Repeat(text+"\n"+secret+"\n", min(max(times, 0), 2000))
		for i := 0; i < len(trimmed); i += 999 {
			if _, err := kept.Write([]byte(trimmed[i:min(i+999, len(trimmed))])); err != nil {
				t.Fatal(err)
			}
		}

		got := lastLines(redact(kept.text(), log.NewSecret(secret)))
		if strings.Contains(got, secret) || strings.ContainsAny(got, "\n\r\x1b") || len(got) > maxMessage+8 || got == "" ||
			strings.ToValidUTF8(got, "") != got {
			t.Errorf("%q", got)
		}
	})
}
