// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cloudinit"
	"github.com/hyperfleet/hyperfleet/test/exe"
)

// TestMergeKeepsUserData compares texts, because people read the result.
func TestMergeKeepsUserData(t *testing.T) {
	t.Parallel()

	in := newSampleInput()
	in.Config, in.FQDN = nil, ""
	in.UserData = `#cloud-config
# Tools that every job needs.
packages: [git, "{{ .ClaimName }}"] # two
write_files:
  - path: /etc/motd
    permissions: 0644
    content: !!binary aGVsbG8=
  - path: /etc/text
    content: >
      folded
      text
swap: {size: 1G}
enabled: yes
`
	out, _ := mustRender(t, in)

	want := `#cloud-config
# Tools that every job needs.
packages: [git, "ci-abc"] # two
write_files:
  - path: /etc/motd
    permissions: 0644
    content: !!binary aGVsbG8=
  - path: /etc/text
    content: |
      folded text
swap: {size: 1G}
enabled: yes
hostname: ci-abc
`
	if diff := cmp.Diff(want, string(out.UserData)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The settings of the host name in the user data of document 000 stay as the user wrote them.
func TestHostNameSettingsAreKept(t *testing.T) {
	t.Parallel()

	for _, managed := range []bool{true, false} {
		in := newSampleInput()
		in.UserData = fmt.Sprintf("#cloud-config\nhostname: {{ .Hostname }}\nfqdn: {{ .FQDN }}\n"+
			"manage_etc_hosts: %t\npreserve_hostname: %t\n", managed, !managed)
		out, _ := mustRender(t, in)

		want := strings.NewReplacer("{{ .Hostname }}", "ci-abc", "{{ .FQDN }}", "ci-abc.hf.local").Replace(in.UserData)
		if !strings.HasPrefix(string(out.UserData), want) {
			t.Errorf("the user data lacks\n%s\nin\n%s", want, out.UserData)
		}
	}
}

// TestBlockTextsStayUnchanged has texts that the YAML library can read but cannot write.
// The operator's meta data is added to that of the user.
func TestMetaDataIsMerged(t *testing.T) {
	t.Parallel()

	in := newSampleInput()
	in.MetaData = "# for the inventory\nplacement: {rack: {{ .ClaimName | toJson }}}\n"
	out, _ := mustRender(t, in)

	want := "# for the inventory\nplacement: {rack: \"ci-abc\"}\ninstance-id: " + in.InstanceID + "\nlocal-hostname: ci-abc\n"
	if diff := cmp.Diff(want, string(out.MetaData)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBlockTextsStayUnchanged(t *testing.T) {
	t.Parallel()

	user := "" +
		"a:\n- |2\n    more\n  less\n" +
		"b: |2-\n\n    more\n  less\n" +
		"c:\n- - d: |4+\n          deep\n\n\n" +
		"e: |\n\n  after a blank line\n" +
		"f: >\n  folded\n    more\n\n  text\n" +
		"g: |1\n \ttab\n" +
		"h: |\n  #!/bin/sh\n  if true; then\n    echo  \n  fi\n" +
		`"  i\n\n  j": k` + "\n"
	in := newSampleInput()
	in.Config, in.FQDN = nil, ""
	in.UserData = "#cloud-config\n" + user
	out, _ := mustRender(t, in)

	want := parseYAML(t, []byte(user))
	want["hostname"] = "ci-abc"

	if diff := cmp.Diff(want, parseYAML(t, out.UserData)); diff != "" {
		t.Errorf("(-want +got):\n%s\n%s", diff, out.UserData)
	}
}

func TestMergeWithAliasesAndMergeKeys(t *testing.T) {
	t.Parallel()

	in := newSampleInput()
	in.UserData = `#cloud-config
x-base: &base
  runcmd: &commands [first]
x-again: *commands
<<: *base
`
	out, c := mustRender(t, in)

	if len(c.RunCmd) != 2 || c.RunCmd[0] != "first" {
		t.Errorf("runcmd %v", c.RunCmd)
	}

	if got := parseYAML(t, out.UserData)["x-again"]; !cmp.Equal(got, []any{"first"}) {
		t.Errorf("the value that shared an anchor with runcmd is %v", got)
	}
}

// TestUserWritesRunnerConfig has templates that write the runner's configuration themselves.
func TestUserWritesRunnerConfig(t *testing.T) {
	t.Parallel()

	content := `{"method":"runner-token","platform":"github-actions","runner_name":"{{ .RunnerName }}","labels":["mine"],"job_timeout":"1h"}`
	encoded := base64.StdEncoding.EncodeToString([]byte(strings.ReplaceAll(content, "{{ .RunnerName }}", "ci-abc")))
	start := "\nruncmd:\n- [systemctl, start, --no-block, " + guest.ServiceUnit + "]\n"

	for name, tc := range map[string]struct {
		entry, rest string
		starts      int // number of commands that start the service
	}{
		"plain":             {"content: '" + content + "'", "", 1},
		"base64":            {"content: " + encoded + "\n  encoding: b64", "", 1},
		"binary":            {"content: !!binary " + encoded, "", 1},
		"starts it as well": {"content: '" + content + "'\n  permissions: '0644'", start, 1},
		"enables it only":   {"content: '" + content + "'", "\nruncmd:\n- systemctl enable hyperfleet-bootstrap\n", 1},
		"enables it now":    {"content: '" + content + "'", "\nruncmd:\n- systemctl enable --now hyperfleet-bootstrap\n", 1},
		"runs it":           {"content: '" + content + "'", "\nruncmd:\n- " + guest.ServicePath + " --config x\n", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			in := newSampleInput()
			in.UserData = "#cloud-config\nwrite_files:\n- path: " + guest.ConfigPath + "\n  " + tc.entry + tc.rest
			_, c := mustRender(t, in)

			want := *in.Config
			want.Labels = []string{"mine"}
			want.JobTimeout = guest.Duration(3600e9)

			var got guest.Config
			if err := json.Unmarshal([]byte(c.getFile(t, guest.ConfigPath)), &got); err != nil {
				t.Fatal(err)
			}

			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}

			if c.WriteFiles[0].Permissions != "0600" || c.WriteFiles[0].Encoding != "text/plain" {
				t.Errorf("entry %+v", c.WriteFiles[0])
			}

			starts := 0

			for _, command := range c.RunCmd {
				text, _ := json.Marshal(command)
				if strings.Contains(string(text), "start") || strings.Contains(string(text), "--now") || strings.Contains(string(text), guest.ServicePath) {
					starts++
				}
			}

			if starts != tc.starts {
				t.Errorf("the service is started %d times: %v", starts, c.RunCmd)
			}
		})
	}
}

// TestOtherFormats: cloud-init reads the output for user data in other formats than cloud-config.
func TestOtherFormats(t *testing.T) {
	t.Parallel()

	python := findInterpreter(t, exe.FindProgram(t, "cloud-init", "cloud-init"))

	mime := "Content-Type: multipart/mixed; boundary=\"b\"\nMIME-Version: 1.0\n\n--b\nContent-Type: text/cloud-config\n\n" +
		"#cloud-config\nruncmd: [users]\npackages: [git]\n--b\nContent-Type: text/x-shellscript\n\n#!/bin/sh\necho é\n--b--\n"

	for name, tc := range map[string]struct {
		text    string
		kinds   []string
		first   string // the user's part, unchanged
		runcmds int
	}{
		"shell":    {"#!/bin/sh\necho 'größer' {{ .RunnerName }}\n", []string{"text/x-shellscript"}, "#!/bin/sh\necho 'größer' ci-abc\n", 1},
		"boothook": {"#cloud-boothook\n#!/bin/sh\n", []string{"text/cloud-boothook"}, "#cloud-boothook\n#!/bin/sh\n", 1},
		"jinja":    {"## template: jinja\n#cloud-config\na: 1\n", []string{"text/jinja2"}, "## template: jinja\n#cloud-config\na: 1\n", 1},
		"MIME":     {mime, []string{"text/cloud-config", "text/x-shellscript"}, "#cloud-config\nruncmd: [users]\npackages: [git]", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			in := newSampleInput()
			in.UserData = tc.text

			out, err := cloudinit.Render(in)
			if err != nil {
				t.Fatal(err)
			}

			got := readWithCloudInit(t, python, out.UserData)
			if diff := cmp.Diff(append(tc.kinds, "text/cloud-config"), got.Kinds); diff != "" {
				t.Errorf("parts (-want +got):\n%s", diff)
			}

			if got.Bodies[0] != tc.first {
				t.Errorf("the user's part became %q", got.Bodies[0])
			}

			alone := readWithCloudInit(t, python, []byte(strings.ReplaceAll(tc.text, "{{ .RunnerName }}", "ci-abc")))
			if diff := cmp.Diff(alone.Bodies, got.Bodies[:len(tc.kinds)]); diff != "" {
				t.Errorf("the user's parts (-alone +in ours):\n%s", diff)
			}

			if len(got.Config.RunCmd) != tc.runcmds || got.Config.Hostname != "ci-abc" {
				t.Errorf("merged by cloud-init: %+v", got.Config)
			}
		})
	}
}

// findInterpreter returns the program in the first line of a script. The first python3 in PATH may lack the
// system's packages.
func findInterpreter(t *testing.T, script string) string {
	t.Helper()

	text, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}

	first, _, _ := strings.Cut(string(text), "\n")

	path, found := strings.CutPrefix(strings.TrimSpace(first), "#!")
	if !found || strings.ContainsAny(strings.TrimSpace(path), " \t") {
		t.Fatalf("%s begins with %q, want #! and a program", script, first)
	}

	return strings.TrimSpace(path)
}

// parts are the parts of user data that cloud-init recognizes.
type parts struct {
	Kinds, Bodies []string
	Config        userConfig
}

func readWithCloudInit(t *testing.T, python string, userData []byte) parts {
	t.Helper()

	path := filepath.Join(t.TempDir(), "user-data")
	if err := os.WriteFile(path, userData, 0o600); err != nil {
		t.Fatal(err)
	}

	cmd := exec.Command(python, "-c", readPartsScript, path)

	var stderr strings.Builder

	cmd.Stderr = &stderr

	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, &stderr, userData)
	}

	var out parts
	if err := json.Unmarshal(output, &out); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}

	return out
}

// readPartsScript prints the parts that cloud-init finds, and its merged cloud-config.
const readPartsScript = `
import json, sys
from cloudinit import user_data, mergers, safeyaml, util
message = user_data.convert_string(open(sys.argv[1], "rb").read())
kinds, bodies, config = [], [], {}
for part in message.walk():
    if part.get_content_maintype() == "multipart":
        continue
    body = util.fully_decoded_payload(part)
    kinds.append(part.get_content_type())
    bodies.append(body)
    if part.get_content_type() == "text/cloud-config":
        merge = mergers.string_extract_mergers(part.get("X-Merge-Type", "")) or mergers.string_extract_mergers("dict(replace)+list()+str()")
        config = mergers.construct(merge).merge(config, safeyaml.load(body))
print(json.dumps({"Kinds": kinds, "Bodies": bodies, "Config": {"Hostname": config.get("hostname"), "RunCmd": config.get("runcmd")}}))
`

// TestDeliveryScripts runs the scripts that install the bootstrap service in a machine.
func TestDeliveryScripts(t *testing.T) {
	t.Parallel()

	const program = "#!/bin/sh\necho service\n"

	exe.FindProgram(t, "curl", "curl")

	arch, err := exec.Command("uname", "-m").Output()
	if err != nil {
		t.Fatal(err)
	}

	good := map[string]string{strings.TrimSpace(string(arch)): formatSHA256(program)}

	for name, tc := range map[string]struct {
		method string
		sums   map[string]string
		served string // "" means missing
		want   string // a part of the output of a failing script
	}{
		"download":                     {"download", good, program, ""},
		"download, changed":            {"download", good, program + "evil", "is not the expected one"},
		"download, other architecture": {"download", map[string]string{"riscv64": formatSHA256(program)}, program, "for architecture"},
		"iso":                          {"iso", good, program, ""},
		"iso, changed":                 {"iso", good, program + "evil", "is not the expected one"},
		"iso without the program":      {"iso", good, "", "bootstrap-service"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			in := newSampleInput()
			in.Delivery = cloudinit.Delivery{Method: tc.method, SHA256: tc.sums, URL: serveProgram(t, tc.served)}
			_, c := mustRender(t, in)
			root := t.TempDir()
			out, err := runDelivery(t, root, c.getFile(t, "/opt/hyperfleet/deliver.sh"), tc.served)

			got, readErr := os.ReadFile(filepath.Join(root, "bootstrap-service"))
			if tc.want != "" {
				if err == nil || !strings.Contains(out, tc.want) || readErr == nil {
					t.Errorf("%v, installed %q, output %s", err, got, out)
				}

				return
			}

			if err != nil || string(got) != program {
				t.Errorf("%v, installed %q, output %s", err, got, out)
			}

			if unit := c.getFile(t, cloudinit.UnitPath); unit != cloudinit.Unit() {
				t.Errorf("unit %q", unit)
			}
		})
	}
}

func TestImageDeliveryWritesNoUnit(t *testing.T) {
	t.Parallel()

	in := newSampleInput()
	in.Delivery.Method = v1alpha1.DeliveryImage

	if _, c := mustRender(t, in); len(c.WriteFiles) != 2 {
		t.Errorf("%+v", c.WriteFiles)
	}
}

// The service starts early only if the user data has nothing that the job must wait for.
func TestEarlyStart(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		userData, delivery string
		want               bool
	}{
		"no user data":         {"", "", true},
		"by name":              {"", v1alpha1.DeliveryImage, true},
		"files and bootcmd":    {"#cloud-config\nbootcmd: [true]\nwrite_files: [{path: /etc/motd, content: x}]\n", "", true},
		"empty list of files":  {"#cloud-config\nwrite_files:\n", "", true},
		"runcmd of the user":   {"#cloud-config\nruncmd: [true]\n", "", false},
		"packages":             {"#cloud-config\npackages: [git]\n", "", false},
		"users":                {"#cloud-config\nusers: [default]\n", "", false},
		"a deferred file":      {"#cloud-config\nwrite_files: [{path: /etc/motd, content: x, defer: true}]\n", "", false},
		"a script":             {"#!/bin/sh\ntrue\n", "", false},
		"the service is to be": {"", v1alpha1.DeliveryISO, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			in := newSampleInput()
			in.UserData, in.Delivery.Method = tc.userData, tc.delivery
			in.Delivery.SHA256 = map[string]string{"x86_64": strings.Repeat("0", 64)}

			out, err := cloudinit.Render(in)
			if err != nil {
				t.Fatal(err)
			}

			if got := strings.Contains(string(out.UserData), guest.StartPath); got != tc.want {
				t.Errorf("early start %t, want %t:\n%s", got, tc.want, out.UserData)
			}

			if at := strings.LastIndex(string(out.UserData), "path: "); tc.want && !strings.HasPrefix(string(out.UserData)[at:], "path: "+guest.StartPath) {
				t.Errorf("it is not the last of the files:\n%s", out.UserData)
			}
		})
	}
}

// TestUnit checks the unit file with systemd.
func TestUnit(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), guest.ServiceUnit)
	// systemd checks that the program exists, so the test uses another program.
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(cloudinit.Unit(), guest.ServicePath, "/bin/true")), 0o600); err != nil {
		t.Fatal(err)
	}

	if out, err := exec.Command(exe.FindProgram(t, "systemd-analyze", "systemd"), "verify", path).CombinedOutput(); err != nil || strings.Contains(string(out), guest.ServiceUnit) {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}

	for _, line := range []string{
		"Wants=network-online.target", "After=network-online.target", "Restart=no",
		"ExecStart=/opt/hyperfleet/bootstrap-service --config /etc/hyperfleet/runner-config.json",
	} {
		if !strings.Contains(cloudinit.Unit(), "\n"+line+"\n") {
			t.Errorf("the unit lacks %s", line)
		}
	}

	if strings.Contains(cloudinit.Unit(), "User=") {
		t.Error("the service does not run as root")
	}
}
