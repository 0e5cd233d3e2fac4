// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guides_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// rootedPath matches an absolute path in a folder that the script changes.
var rootedPath = regexp.MustCompile(`(^|[\s"=>])/(etc|opt|var)/`)

// TestCustomizePreparesTheImage runs the script for images below another root, with tools that log their arguments,
// and checks what it installs and what it removes.
func TestCustomizePreparesTheImage(t *testing.T) {
	t.Parallel()

	root, tools := t.TempDir(), t.TempDir()

	for _, name := range []string{"apt-get", "systemctl", "cloud-init", "useradd", "id", "chown"} {
		text := "#!/bin/sh\necho \"${0##*/} $*\" >>\"$CALLS\"\n[ \"${0##*/}\" != id ]\n"
		if err := os.WriteFile(filepath.Join(tools, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}

	removed := []string{
		"/etc/ssh/ssh_host_rsa_key", "/var/lib/dbus/machine-id", "/var/lib/systemd/random-seed", "/var/lib/apt/lists/list",
		"/etc/netplan/50-cloud-init.yaml", "/etc/udev/rules.d/70-persistent-net.rules", "/var/log/journal/0123/system.journal",
	}

	files := map[string]string{
		"/etc/machine-id": "0123", "/opt/hyperfleet-setup/bootstrap-service": "#!/bin/sh\n",
		"/opt/hyperfleet-setup/packages": "git\ndocker.io\n", "/etc/systemd/system/x": "", "/var/log/apt/history.log": "x",
	}
	for _, name := range removed {
		files[name] = "x"
	}

	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(root+name), 0o755); err != nil {
			t.Fatal(err)
		}

		if err := os.WriteFile(root+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	script := filepath.Join(tools, "customize.sh")

	var lines []string
	for line := range strings.Lines(readFile(t, customize)) {
		lines = append(lines, rootedPath.ReplaceAllString(line, "${1}"+root+"/${2}/"))
	}

	if err := os.WriteFile(script, []byte(strings.Join(lines, "")), 0o700); err != nil {
		t.Fatal(err)
	}

	cmd := exec.Command("sh", script)
	cmd.Env = append(os.Environ(), "CALLS="+tools+"/calls", "PATH="+tools+":"+os.Getenv("PATH"))

	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	for _, name := range append(removed, "/opt/hyperfleet-setup") {
		if _, err := os.Stat(root + name); err == nil {
			t.Errorf("%s is left", name)
		}
	}

	calls := readFile(t, tools+"/calls")
	for _, want := range []string{
		"cloud-init clean --logs\n", "systemctl enable hyperfleet-bootstrap.path\n", "useradd --create-home --shell /bin/bash runner\n",
		"qemu-guest-agent cloud-init netplan.io", " git docker.io", "apt-get clean\n",
	} {
		if !strings.Contains(calls, want) {
			t.Errorf("%q is not in the calls:\n%s", want, calls)
		}
	}

	for _, name := range []string{"/etc/machine-id", "/var/log/apt/history.log"} {
		if got := readFile(t, root+name); got != "" {
			t.Errorf("%s is %q", name, got)
		}
	}

	if got := readFile(t, root+"/etc/cloud/cloud.cfg.d/90-hyperfleet.cfg"); got != "datasource_list: [NoCloud, ConfigDrive]\n" {
		t.Errorf("data sources: %q", got)
	}

	if info, err := os.Stat(root + "/opt/hyperfleet/bootstrap-service"); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("bootstrap service: %v, %v", info, err)
	}
}
