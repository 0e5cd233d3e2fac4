// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// samplesDir is the folder of the files in docs/start/runners.md.
const samplesDir = "../../deploy/samples/start"

// TestStartSamples checks that the samples in docs/start/runners.md are the output of the command.
func TestStartSamples(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	execute(t, nil, "init", "--skip-checks", "--dir", dir, "--endpoint", "https://pve.example.com:8006",
		"--fingerprint", "3C:1B:7A:5D:0E:92:44:F8:6B:21:D3:8C:57:AE:10:99:E4:0F:73:B6:2D:58:CA:81:36:FD:49:12:A0:EB:65:07",
		"--token-id", "hyperfleet@pve!operator", "--token-secret-file", writeTempFile(t, "00000000-0000-0000-0000-000000000000\n"),
		"--organization", "my-org", "--app-id", "123456", "--installation-id", "12345678", "--app-key-file", writeTempFile(t, "change-me\n"),
	).expectSuccess(t, "kubectl apply")

	for _, name := range []string{"fleet.yaml", "secrets.yaml"} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)

		got = regexp.MustCompile("[0-9a-f]{64}").ReplaceAll(got, []byte("change-me")) // the generated webhook secret
		file := filepath.Join(samplesDir, name)

		if os.Getenv("UPDATE") != "" {
			must(t, os.WriteFile(file, got, 0o600))
		}

		want, err := os.ReadFile(file)
		must(t, err)

		if !bytes.Equal(got, want) {
			t.Errorf("%s is not the output of the command: run the test with UPDATE=yes\n%s", file, got)
		}
	}
}

// TestInitWithoutTerminal checks that the command lists all missing flags if it has no terminal.
func TestInitWithoutTerminal(t *testing.T) {
	t.Parallel()

	execute(t, nil, "init", "--endpoint", "pve.example.com", "--dir", t.TempDir()).expectFailure(t, cli.ExitUsage,
		"give --token-id, --token-secret-file, --organization, --github-token-file")
}

// TestInitChecksAnswers checks that the command checks each answer in the same way as the operator.
func TestInitChecksAnswers(t *testing.T) {
	t.Parallel()

	server := pvetest.New(t, pve.DefaultModel())
	forge := githubtest.New(t, github.Options{})
	good := map[string]string{
		"endpoint": server.URL(), "fingerprint": server.Fingerprint(), "token-id": pve.DefaultTokenID,
		"token-secret-file": writeTempFile(t, pve.DefaultSecret), "template": pve.DefaultTemplate, "memory": "1Gi",
		"repository": githubtest.Repo, "github-token-file": writeTempFile(t, githubtest.PAT), "github-url": forge.URL,
	}

	other := httptest.NewTLSServer(nil)
	t.Cleanup(other.Close)

	authority := func(text []byte) map[string]string {
		return map[string]string{"ca-file": writeTempFile(t, string(text)), "fingerprint": ""}
	}

	for name, tc := range map[string]struct {
		change map[string]string
		want   string
	}{
		"valid":                {},
		"another certificate":  {change: map[string]string{"fingerprint": strings.Repeat("AB:", 31) + "AB"}, want: "use --fingerprint " + server.Fingerprint()},
		"half a fingerprint":   {change: map[string]string{"fingerprint": "AB:CD"}, want: "--fingerprint AB:CD: a fingerprint is a SHA-256 digest"},
		"another authority":    {change: authority(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.Certificate().Raw})), want: "--ca-file does not verify"},
		"no authority":         {change: authority([]byte("text")), want: "it contains no certificate: use PEM"},
		"an unknown template":  {change: map[string]string{"template": "none"}, want: "none"},
		"a wrong token":        {change: map[string]string{"token-secret-file": writeTempFile(t, "11111111-1111-1111-1111-111111111111")}, want: "token"},
		"an unknown authority": {change: map[string]string{"fingerprint": ""}, want: "--fingerprint " + server.Fingerprint()},
		"another repository":   {change: map[string]string{"repository": "octo-org/other"}, want: "octo-org/other"},
		"a wrong GitHub token": {change: map[string]string{"github-token-file": writeTempFile(t, "ghp_wrong")}, want: "token"},
		"invalid memory size":  {change: map[string]string{"memory": "8GB"}, want: "--memory 8GB: give a size such as 8Gi"},
		"no server":            {change: map[string]string{"endpoint": "https://127.0.0.1:1"}, want: "127.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir := filepath.Join(t.TempDir(), "fleet")
			args := []string{"init", "--dir", dir}

			for flag, value := range good {
				if changed, ok := tc.change[flag]; ok {
					value = changed
				}

				args = append(args, "--"+flag, value)
			}

			if file := tc.change["ca-file"]; file != "" {
				args = append(args, "--ca-file", file)
			}

			got := execute(t, nil, args...)
			if tc.want != "" {
				got.expectFailure(t, anyCode, tc.want)

				if got.err != nil && strings.Contains(got.err.Error(), "tls.") {
					t.Errorf("%v: tls.* is not a flag", got.err)
				}

				if _, err := os.Stat(dir); err == nil {
					t.Error("the command has written files")
				}

				return
			}

			got.expectSuccess(t, "kubectl apply")

			text, err := os.ReadFile(filepath.Join(dir, "secrets.yaml"))
			must(t, err)
			checkContains(t, string(text), pve.DefaultSecret)

			execute(t, nil, args...).expectFailure(t, cli.ExitFailed, "already exists")
		})
	}
}
