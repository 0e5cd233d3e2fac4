// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package setup

import (
	"bytes"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// start is what the README shows.
const start = "../../../deploy/samples/start"

// initialise runs the command without a terminal.
func initialise(t *testing.T, args ...string) (string, error) {
	t.Helper()

	var out bytes.Buffer

	cmd := New()
	cmd.SetArgs(args)
	cmd.SetIn(strings.NewReader(""))
	cmd.SetOut(&out)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	err := cmd.Execute()

	return out.String(), err
}

// secret is a file with a secret.
func secret(t *testing.T, value string) string {
	t.Helper()

	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(value+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	return file
}

// The samples that the README shows are what the command writes.
func TestStartIsWhatIsWritten(t *testing.T) {
	t.Parallel()

	sample := answers{
		Namespace: "ci", OperatorNamespace: "hyperfleet-system", Cluster: "proxmox",
		Endpoint:    "https://pve.example.com:8006/api2/json",
		Fingerprint: "3C:1B:7A:5D:0E:92:44:F8:6B:21:D3:8C:57:AE:10:99:E4:0F:73:B6:2D:58:CA:81:36:FD:49:12:A0:EB:65:07",
		TokenID:     "hyperfleet@pve!operator", TokenSecret: "00000000-0000-0000-0000-000000000000",
		Template: "hyperfleet-runner", CPU: 4, Memory: "8Gi", Organization: "my-org",
		AppID: "123456", InstallationID: "12345678", AppKey: "change-me", WebhookSecret: "change-me",
		Labels: []string{"linux", "x64"}, MaxMachines: 10,
	}

	for _, name := range []string{fleetFile, secretsFile} {
		got, err := sample.render(name)
		if err != nil {
			t.Fatal(err)
		}

		file := filepath.Join(start, name)
		if os.Getenv("UPDATE") != "" {
			if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}

		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}

		if got != string(want) {
			t.Errorf("%s is not what the command writes: UPDATE=yes go test writes it\n%s", file, got)
		}
	}
}

// Without a terminal all that is missing is told at once.
func TestNobodyToAsk(t *testing.T) {
	t.Parallel()

	_, err := initialise(t, "--endpoint", "pve.example.com", "--dir", t.TempDir())
	if cli.ExitCode(err) != cli.ExitUsage || !strings.Contains(err.Error(), "give --token-id, --token-secret-file, --organization, --github-token-file") {
		t.Errorf("%v", err)
	}
}

// Each answer is tried as the operator does it.
func TestAnswersAreTried(t *testing.T) {
	t.Parallel()

	server := pvetest.New(t, pve.DefaultModel())
	forge := githubtest.New(t, github.Options{})
	good := map[string]string{
		"endpoint": server.URL(), "fingerprint": server.Fingerprint(), "token-id": pve.DefaultTokenID,
		"token-secret-file": secret(t, pve.DefaultSecret), "template": pve.DefaultTemplate, "memory": "1Gi",
		"repository": githubtest.Repo, "github-token-file": secret(t, githubtest.PAT), "github-url": forge.URL,
	}

	other := httptest.NewTLSServer(nil)
	t.Cleanup(other.Close)

	authority := func(text []byte) map[string]string {
		return map[string]string{"ca-file": secret(t, string(text)), "fingerprint": ""}
	}

	for name, tc := range map[string]struct {
		change map[string]string
		want   string
	}{
		"all is right":          {},
		"another certificate":   {change: map[string]string{"fingerprint": strings.Repeat("AB:", 31) + "AB"}, want: "give it: --fingerprint " + server.Fingerprint()},
		"half a fingerprint":    {change: map[string]string{"fingerprint": "AB:CD"}, want: "--fingerprint AB:CD: want a SHA-256"},
		"another authority":     {change: authority(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.Certificate().Raw})), want: "--ca-file does not vouch"},
		"no authority":          {change: authority([]byte("text")), want: "no certificate in it: write PEM"},
		"an unknown template":   {change: map[string]string{"template": "none"}, want: "none"},
		"a wrong token":         {change: map[string]string{"token-secret-file": secret(t, "11111111-1111-1111-1111-111111111111")}, want: "token"},
		"an unknown authority":  {change: map[string]string{"fingerprint": ""}, want: "--fingerprint " + server.Fingerprint()},
		"another repository":    {change: map[string]string{"repository": "octo-org/other"}, want: "octo-org/other"},
		"a wrong GitHub token":  {change: map[string]string{"github-token-file": secret(t, "ghp_wrong")}, want: "token"},
		"memory of no size":     {change: map[string]string{"memory": "8GB"}, want: "--memory 8GB: write a size such as 8Gi"},
		"nobody at the address": {change: map[string]string{"endpoint": "https://127.0.0.1:1"}, want: "127.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir := filepath.Join(t.TempDir(), "fleet")
			args := []string{"--dir", dir}

			for flag, value := range good {
				if changed, ok := tc.change[flag]; ok {
					value = changed
				}

				args = append(args, "--"+flag, value)
			}

			if file := tc.change["ca-file"]; file != "" {
				args = append(args, "--ca-file", file)
			}

			said, err := initialise(t, args...)
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "tls.") {
					t.Errorf("%v, want %q, and nothing of tls.*, which is no flag", err, tc.want)
				}

				if _, err := os.Stat(dir); err == nil {
					t.Error("it has written files all the same")
				}

				return
			}

			if err != nil || !strings.Contains(said, "kubectl apply") {
				t.Fatalf("%v\n%s", err, said)
			}

			if text, err := os.ReadFile(filepath.Join(dir, secretsFile)); err != nil || !strings.Contains(string(text), pve.DefaultSecret) {
				t.Errorf("%v: the Secrets are not written", err)
			}

			if _, err := initialise(t, args...); err == nil || !strings.Contains(err.Error(), "is there already") {
				t.Errorf("it writes over files: %v", err)
			}
		})
	}
}
