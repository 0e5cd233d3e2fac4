// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guides_test

import (
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/cloudinit"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

const (
	templateGuide = "../../docs/guides/proxmox-template.md"
	customize     = "../../deploy/proxmox/customize.sh"
	makeTemplate  = "../../deploy/proxmox/make-template.sh"
)

func readFile(t testing.TB, path string) string {
	t.Helper()

	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	return string(raw)
}

// TestTemplateFiles checks that a template has the same systemd unit as the operator writes, and its files at the
// paths that machines use.
func TestTemplateFiles(t *testing.T) {
	t.Parallel()

	script := readFile(t, customize)

	unit := regexp.MustCompile(`(?s)\.service <<'UNIT'\n(.*?)UNIT\n`).FindStringSubmatch(script)
	if unit == nil {
		t.Fatal("the script writes no systemd unit")
	}

	if diff := cmp.Diff(cloudinit.Unit(), unit[1]); diff != "" {
		t.Errorf("the unit (-operator +template):\n%s", diff)
	}

	for _, want := range []string{
		"unit=" + strings.TrimSuffix(guest.ServiceUnit, ".service") + "\n", "PathExists=" + guest.StartPath + "\n",
		"/bootstrap-service\" " + guest.ServicePath + "\n", "/spire-agent\" " + guest.AgentPath + "\n",
	} {
		if !strings.Contains(script, want) {
			t.Errorf("the script does not contain %q", want)
		}
	}
}

// fakeTools replaces the programs of a node. Each logs its arguments, and qm knows no VM. virt-customize also logs the files
// that it copies into the image, which have the text of their source.
const fakeTools = `#!/bin/sh
echo "${0##*/} $*" >>"$CALLS"
if [ "${0##*/} $1" = "qm status" ]; then exit 2; fi
if [ "${0##*/}" = virt-customize ]; then
	for file in "${4%:*}"/*; do echo "copied ${file##*/}:" $(cat "$file") >>"$CALLS"; done
fi
`

// runScript runs the script on a simulated node without VMs, and returns the calls of the programs, the output and
// the error.
func runScript(t *testing.T, args ...string) ([]string, string, error) {
	t.Helper()

	dir := t.TempDir()
	calls := filepath.Join(dir, "calls")

	for _, name := range []string{"qm", "virt-customize", "qemu-img"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(fakeTools), 0o700); err != nil {
			t.Fatal(err)
		}
	}

	for _, name := range []string{"debian-12-generic-amd64.qcow2", "service", "agent", "runner"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	script, err := filepath.Abs(makeTemplate)
	if err != nil {
		t.Fatal(err)
	}

	cmd := exec.Command("bash", append([]string{script}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CALLS="+calls, "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	logged, _ := os.ReadFile(calls)

	return strings.Split(strings.TrimSpace(string(logged)), "\n"), string(out), err
}

var (
	temporary = regexp.MustCompile(`import-from=[^,]*/disk\.qcow2`)
	folder    = regexp.MustCompile(`\$PWD|/[^ :]*/`)
)

// TestTemplateByScriptAndByHand checks that script and guide run the same commands, and that Proxmox VE accepts
// their options.
func TestTemplateByScriptAndByHand(t *testing.T) {
	t.Parallel()

	calls, out, err := runScript(t, "--image", "debian-12-generic-amd64.qcow2", "--bootstrap-service", "service", "--spire-agent", "agent",
		"--runner", "runner", "--packages", "git,jq")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	var byScript []string

	for _, call := range calls {
		if strings.HasPrefix(call, "qm ") && !strings.HasPrefix(call, "qm status") {
			byScript = append(byScript, temporary.ReplaceAllString(call, "import-from=disk.qcow2"))
		}
	}

	if diff := cmp.Diff(readGuideCommands(t, "## Create the template by hand\n"), byScript); diff != "" || len(byScript) < 4 {
		t.Errorf("commands (-guide +script):\n%s", diff)
	}

	if !slices.ContainsFunc(calls, func(call string) bool {
		return strings.HasPrefix(call, "virt-customize -a ") && strings.HasSuffix(call, "/hyperfleet-setup:/opt --run "+absolutePath(t, customize))
	}) {
		t.Errorf("the image is not customized: %q", calls)
	}

	for _, want := range []string{
		"copied bootstrap-service: service", "copied spire-agent: agent", "copied actions-runner.tar.gz: runner", "copied packages: git jq",
	} {
		if !slices.Contains(calls, want) {
			t.Errorf("%q is not in the calls %q", want, calls)
		}
	}

	base := readGuideCommands(t, "## Create the template with Packer\n")
	if len(base) != 3 {
		t.Errorf("the commands for Packer are %q", base)
	}

	for option, value := range parseOptions(append(base, byScript...)) {
		checkOption(t, option, value)
	}
}

// TestMakeTemplateUsesItsOptions checks that the VM has the ID, name, storage and bridge of the options.
func TestMakeTemplateUsesItsOptions(t *testing.T) {
	t.Parallel()

	calls, out, err := runScript(t, "--image", "debian-12-generic-amd64.qcow2", "--bootstrap-service", "service",
		"--id", "9100", "--name", "ci", "--storage", "ceph", "--bridge", "vmbr7")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	all := strings.Join(calls, "\n")
	for _, want := range []string{"qm create 9100 ", "--name ci ", "virtio,bridge=vmbr7 ", "--scsi0 ceph:0,", "qm template 9100"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not in the calls %q", want, calls)
		}
	}
}

// absolutePath returns the absolute path.
func absolutePath(t testing.TB, path string) string {
	t.Helper()

	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}

	return path
}

// readGuideCommands returns the qm commands below a heading of the guide.
func readGuideCommands(t testing.TB, heading string) []string {
	t.Helper()

	text := strings.ReplaceAll(readFile(t, templateGuide), " \\\n ", "")
	_, text, _ = strings.Cut(text, heading)
	text, _, _ = strings.Cut(text, "\n## ")

	var out []string

	for line := range strings.SplitSeq(text, "\n") {
		if command, ok := strings.CutPrefix(line, "qm "); ok {
			out = append(out, "qm "+temporary.ReplaceAllString(folder.ReplaceAllString(command, "/"), "import-from=disk.qcow2"))
		}
	}

	return out
}

// parseOptions returns the options of qm create and qm set, except the new disk.
func parseOptions(calls []string) url.Values {
	out := url.Values{}

	for _, call := range calls {
		words := strings.Fields(call)[3-strings.Count(call, "qm template"):]

		for i := 0; i+1 < len(words); i += 2 {
			if name := strings.TrimPrefix(words[i], "--"); name != "scsi0" {
				out.Set(name, words[i+1])
			}
		}
	}

	return out
}

// checkOption sets an option of a VM of the simulated Proxmox VE.
func checkOption(t *testing.T, option string, values []string) {
	t.Helper()

	model := pve.DefaultModel()
	model.ACL = []pve.ACL{
		{Path: "/", Principal: pve.DefaultUser, Role: "Administrator"}, {Path: "/", Principal: pve.DefaultTokenID, Role: "Administrator"},
	}

	for i := range model.VMs {
		model.VMs[i].Running = false
	}

	server := pvetest.New(t, model)

	body := strings.NewReader(url.Values{option: values}.Encode())

	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL()+"/api2/json/nodes/pve2/qemu/101/config", body)
	if err != nil {
		t.Fatal(err)
	}

	request.Header.Set("Authorization", "PVEAPIToken="+pve.DefaultTokenID+"="+pve.DefaultSecret)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")

	response, err := server.HTTPClient().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()

	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("Proxmox VE rejects %s=%q: %s %s %v", option, values, response.Status, text, err)
	}
}

// TestMakeTemplateRejectsArguments checks that the script reports missing and invalid arguments before it calls a
// program.
func TestMakeTemplateRejectsArguments(t *testing.T) {
	t.Parallel()

	const image = "debian-12-generic-amd64.qcow2"

	for name, tc := range map[string]struct {
		args []string
		says string
	}{
		"no image":       {[]string{"--bootstrap-service", "service"}, "--image is missing"},
		"no service":     {[]string{"--image", image}, "--bootstrap-service is missing"},
		"no such file":   {[]string{"--image", "other.img", "--bootstrap-service", "service"}, "file other.img does not exist"},
		"unknown option": {[]string{"--cores", "4"}, "unknown option --cores"},
		"no value":       {[]string{"--image"}, "--image needs a value"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			calls, out, err := runScript(t, tc.args...)
			if err == nil || !strings.Contains(out, tc.says) {
				t.Errorf("error %v, output %q, want %q", err, out, tc.says)
			}

			if slices.ContainsFunc(calls, func(call string) bool { return call != "" }) {
				t.Errorf("the script called %q", calls)
			}
		})
	}
}
