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
	testlibvirt "github.com/hyperfleet/hyperfleet/test/libvirt"
	"github.com/hyperfleet/hyperfleet/test/must"
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
		must.Do(t, err)

		got = regexp.MustCompile("[0-9a-f]{64}").ReplaceAll(got, []byte("change-me")) // the generated webhook secret
		file := filepath.Join(samplesDir, name)

		if os.Getenv("UPDATE") != "" {
			must.Do(t, os.WriteFile(file, got, 0o600))
		}

		want, err := os.ReadFile(file)
		must.Do(t, err)

		if !bytes.Equal(got, want) {
			t.Errorf("%s is not the output of the command: run the test with UPDATE=yes\n%s", file, got)
		}
	}
}

// TestInitFrom checks what the command takes over from the configuration of other programs.
func TestInitFrom(t *testing.T) {
	t.Parallel()

	const arc = `githubConfigUrl: https://github.com/my-org/my-repo
githubConfigSecret: {github_token: ghp_swordfish}
runnerScaleSetName: big-machines
runnerGroup: builders
maxRunners: 7
minRunners: 2
containerMode: {type: dind}
template: {spec: {containers: []}}
`

	const garm = `{"id": "1", "provider_name": "lxd", "max_runners": 4, "min_idle_runners": 1, "image": "ubuntu:24.04", "flavor": "m1",
"os_type": "linux", "os_arch": "arm64", "enabled": true, "tags": [{"id": "a", "name": "gpu"}, {"id": "b", "name": "x64"}],
"org_name": "my-org", "github-runner-group": "default", "endpoint": {"api_base_url": "https://ghes.example.com/api/v3"}}`

	for name, test := range map[string]struct {
		text string
		args []string
		// fleet are texts in the written file, and notes texts in the output.
		fleet, notes []string
		err          string
	}{
		"values of ARC": {
			text: arc,
			fleet: []string{
				"owner: my-org\n        repository: my-repo", `runnerGroup: "builders", scaleSet: "big-machines"}`,
				"maxReplicas: 7, warm: {idle: 2}}",
			},
			notes: []string{"uninstall the scale set", "githubConfigSecret is not taken over", "containerMode dind"},
		},
		"an AutoscalingRunnerSet": {
			text:  "kind: AutoscalingRunnerSet\nmetadata: {name: arc}\nspec:\n  githubConfigUrl: https://ghes.example.com/my-org\n",
			fleet: []string{"organization: my-org", `scaleSet: "arc"`, "apiUrl: https://ghes.example.com/api/v3"},
		},
		"a pool of GARM": {
			text: garm, args: []string{"--max-machines", "3"},
			fleet: []string{
				"organization: my-org", `labels: [gpu, x64], runnerGroup: "default"`, "maxReplicas: 3, warm: {idle: 1}",
				"apiUrl: https://ghes.example.com/api/v3", "github-webhook",
			},
			notes: []string{"disable the pool", "flavor m1", "architecture arm64"},
		},
		"a pool of GARM with Windows": {
			text:  strings.ReplaceAll(garm, `"os_type": "linux"`, `"os_type": "windows"`),
			fleet: []string{"os: windows\n    delivery: image", "templateName: windows-runner", "labels: [gpu, x64]"},
			notes: []string{"the machines have Windows"},
		},
		"a flag wins over the system": {
			text: strings.ReplaceAll(garm, `"os_type": "linux"`, `"os_type": "windows"`), args: []string{"--os", "linux"},
			fleet: []string{"method: runner-token\n    config", "templateName: hyperfleet-runner"},
		},
		"a flag wins":        {text: arc, args: []string{"--organization", "other"}, fleet: []string{"organization: other"}},
		"no template":        {text: arc, fleet: []string{"name: proxmox\n", "templateName: hyperfleet-runner"}},
		"an enterprise":      {text: strings.ReplaceAll(arc, "my-org/my-repo", "enterprises/e"), err: "see docs/guides/github.md for enterprises"},
		"no name":            {text: "githubConfigUrl: https://github.com/my-org\n", err: "runnerScaleSetName is missing"},
		"another file":       {text: "a: b\n", err: "neither githubConfigUrl"},
		"a list of pools":    {text: "[" + garm + "]", err: "neither YAML nor JSON of one pool"},
		"a file without end": {text: "a: [", err: "neither YAML nor JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir := filepath.Join(t.TempDir(), "fleet")
			got := execute(t, nil, append([]string{
				"init", "--skip-checks", "--from", writeTempFile(t, test.text), "--dir", dir, "--endpoint", "https://pve.example.com:8006",
				"--token-id", "hyperfleet@pve!operator", "--token-secret-file", writeTempFile(t, "00000000-0000-0000-0000-000000000000"),
				"--github-token-file", writeTempFile(t, githubtest.PAT),
			}, test.args...)...)

			if test.err != "" {
				got.expectFailure(t, cli.ExitUsage, test.err)

				return
			}

			got.expectSuccess(t, append(test.notes, "kubectl apply")...)

			checkFleet(t, dir, test.fleet...)
		})
	}
}

// TestInitForLibvirt checks that the command connects to a libvirt host and finds the template, and names the flags that a
// connection needs.
func TestInitForLibvirt(t *testing.T) {
	t.Parallel()

	host, release, err := testlibvirt.Acquire(t.Context())
	must.Do(t, err)
	t.Cleanup(func() { must.Do(t, release()) })

	volume := strings.ToLower(t.Name()) + ".qcow2"
	must.Do(t, host.CreateVolume(testlibvirt.PoolName, volume, 8<<20))

	forge := githubtest.New(t, github.Options{})
	init := func(endpoint string, more ...string) executed {
		return execute(t, nil, append([]string{
			"init", "--endpoint", endpoint, "--dir", filepath.Join(t.TempDir(), "fleet"), "--memory", "64Mi", "--cpu", "1",
			"--storage-pool", testlibvirt.PoolName, "--template", volume,
			"--repository", githubtest.Repo, "--github-token-file", writeTempFile(t, githubtest.PAT), "--github-url", forge.URL,
		}, more...)...)
	}

	init(host.URI()).expectSuccess(t, "connected to libvirt", "template "+volume+" is available on 1 of them", "kubectl apply")
	init(host.URI(), "--template", "none.qcow2").expectFailure(t, anyCode, "none.qcow2")
	init("qemu+tls://host.example.com/system").expectFailure(t, anyCode, "--client-cert-file, --client-key-file and --ca-file")
	init("qemu+ssh://root@host.example.com/system").expectFailure(t, anyCode, "--ssh-key-file and --ssh-host-key")
	init("qemu+ssh://root@host.example.com/system", "--skip-checks", "--ssh-key-file", writeTempFile(t, "key"),
		"--ssh-host-key", "SHA256:"+strings.Repeat("A", 43)).expectSuccess(t, "kubectl apply")

	dir := filepath.Join(t.TempDir(), "fleet")
	init(host.URI(), "--skip-checks", "--template", "", "--dir", dir).expectSuccess(t, "kubectl apply")
	checkFleet(t, dir, "name: libvirt\n", "{volume: runner.qcow2,")
}

// checkFleet checks that the file that the command has written has the texts, and no token.
func checkFleet(t *testing.T, dir string, texts ...string) {
	t.Helper()

	fleet, err := os.ReadFile(filepath.Join(dir, "fleet.yaml"))
	must.Do(t, err)

	for _, want := range texts {
		if !bytes.Contains(fleet, []byte(want)) {
			t.Errorf("no %q in\n%s", want, fleet)
		}
	}

	if bytes.Contains(fleet, []byte("swordfish")) {
		t.Error("the file contains a token")
	}
}

// TestInitForWindows checks that the command writes a template and a pool for Windows if a flag or Proxmox VE says so.
func TestInitForWindows(t *testing.T) {
	t.Parallel()

	model := pve.DefaultModel()
	model.Templates[0].Config = map[string]string{"ostype": "win11"}
	windows, linux := pvetest.New(t, model), pvetest.New(t, pve.DefaultModel())
	forge := githubtest.New(t, github.Options{})

	fields := []string{
		"method: runner-token\n    os: windows\n    delivery: image\n", `runner: {installPath: 'C:\actions-runner', workDir: 'C:\runner-work'}`,
		"bootstrapTimeout: 30m}",
	}

	for name, tc := range map[string]struct {
		server     *pve.Server
		args       []string
		want, miss []string
		err        string
	}{
		"found":             {server: windows, want: append(fields, "labels: [windows, x64]")},
		"given":             {server: windows, args: []string{"--os", "windows"}, want: fields},
		"with labels":       {server: windows, args: []string{"--labels", "big"}, want: append(fields, "labels: [big]")},
		"without checks":    {server: linux, args: []string{"--skip-checks", "--os", "windows", "--template", ""}, want: append(fields, "templateName: windows-runner")},
		"Linux":             {server: linux, want: []string{"labels: [linux, x64]", "maxLifetime: 6h}"}, miss: []string{"windows", `C:\`}},
		"another system":    {server: windows, args: []string{"--os", "linux"}, err: "records the operating system windows for template " + pve.DefaultTemplate + ": use --os windows"},
		"an unknown system": {server: windows, args: []string{"--os", "macos"}, err: "--os macos: use linux or windows"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir := filepath.Join(t.TempDir(), "fleet")
			got := execute(t, nil, append([]string{
				"init", "--dir", dir, "--endpoint", tc.server.URL(), "--fingerprint", tc.server.Fingerprint(), "--token-id", pve.DefaultTokenID,
				"--token-secret-file", writeTempFile(t, pve.DefaultSecret), "--template", pve.DefaultTemplate, "--memory", "1Gi",
				"--repository", githubtest.Repo, "--github-token-file", writeTempFile(t, githubtest.PAT), "--github-url", forge.URL,
			}, tc.args...)...)

			if tc.err != "" {
				got.expectFailure(t, anyCode, tc.err)

				return
			}

			got.expectSuccess(t, "kubectl apply")

			fleet, err := os.ReadFile(filepath.Join(dir, "fleet.yaml"))
			must.Do(t, err)
			checkContains(t, string(fleet), tc.want...)

			for _, text := range tc.miss {
				if bytes.Contains(fleet, []byte(text)) {
					t.Errorf("%q is in\n%s", text, fleet)
				}
			}
		})
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
		"token-secret-file": writeTempFile(t, pve.DefaultSecret), "template": pve.DefaultTemplate, "memory": "1Gi", "namespace": "ci",
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
		"invalid memory size":  {change: map[string]string{"memory": "8GB"}, want: "--memory 8GB: give a size of at least 64Mi, such as 8Gi"},
		"too little memory":    {change: map[string]string{"memory": "8"}, want: "--memory 8: give a size of at least 64Mi, such as 8Gi"},
		"a name with capitals": {change: map[string]string{"namespace": "CI"}, want: `--namespace "CI": give a name of at most 63 lower-case letters`},
		"no server":            {change: map[string]string{"endpoint": "https://127.0.0.1:1"}, want: "(--skip-checks)"},
		"a user, not a token":  {change: map[string]string{"token-id": "hyperfleet@pve"}, want: "--token-id: hyperfleet@pve is not the ID of a token: give USER@REALM!TOKEN"},
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
			must.Do(t, err)
			checkContains(t, string(text), pve.DefaultSecret)

			execute(t, nil, args...).expectFailure(t, cli.ExitFailed, "already exists")
		})
	}
}
