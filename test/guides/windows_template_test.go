// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guides_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/execguest"
)

// proxmoxFolder has the scripts and templates for images.
const proxmoxFolder = "../../deploy/proxmox/"

var (
	// scriptFile matches a file that customize.ps1 reads from its own folder.
	scriptFile = regexp.MustCompile(`\$here\\([\w.-]+)`)
	// diskFile matches a file that Packer writes to the CD with customize.ps1.
	diskFile = regexp.MustCompile(`"\$\{path\.root\}/([\w./-]+)"`)
)

// TestWindowsTemplateFiles checks that the files for a template with Windows fit each other, and what the service expects.
func TestWindowsTemplateFiles(t *testing.T) {
	t.Parallel()

	script, packer := readFile(t, proxmoxFolder+"customize.ps1"), readFile(t, proxmoxFolder+"packer/windows/windows.pkr.hcl")
	// The first files are those of hyperfleet-setup.
	disk := map[string]bool{"bootstrap-service.exe": true, "CloudbaseInitSetup.msi": true, "actions-runner.zip": true}

	for _, match := range diskFile.FindAllStringSubmatch(packer, -1) {
		disk[filepath.Base(match[1])] = true

		if _, err := os.Stat(proxmoxFolder + "packer/windows/" + match[1]); err != nil {
			t.Errorf("Packer's template: %v", err)
		}
	}

	if len(disk) < 8 {
		t.Errorf("Packer gives customize.ps1 only %v", disk)
	}

	for _, match := range scriptFile.FindAllStringSubmatch(script, -1) {
		if !disk[match[1]] {
			t.Errorf("customize.ps1 reads %s, which Packer does not give it", match[1])
		}
	}

	for file, lines := range map[string][]string{
		"customize.ps1": {
			"$service = 'HyperFleetBootstrap'", `"$folder\bootstrap-service.exe`,
			`$folder = "$env:ProgramFiles\HyperFleet"`, `/unattend:$folder\sysprep.xml`, "-Name WaitToKillServiceTimeout -Value 20000\n",
		},
		"sysprep.xml": {`--config-file "C:\Program Files\HyperFleet\cloudbase-init-unattend.conf"`},
		"cloudbase-init.conf": {
			"\nallow_reboot=false\n", "metadata_services=cloudbaseinit.metadata.services.nocloudservice.NoCloudConfigDriveService,",
		},
		"cloudbase-init-unattend.conf": {
			"\nallow_reboot=false\n", "metadata_services=cloudbaseinit.metadata.services.nocloudservice.NoCloudConfigDriveService,",
			"\nplugins=cloudbaseinit.plugins.common.sethostname.SetHostNamePlugin\n",
		},
		"../../cmd/bootstrap-service/main.go": {`winservice.Run("HyperFleetBootstrap"`},
	} {
		text := readFile(t, proxmoxFolder+file)
		for _, line := range lines {
			if !strings.Contains(text, line) {
				t.Errorf("%s does not contain %q", file, line)
			}
		}
	}

	if want := `C:\Program Files\HyperFleet\bootstrap-service.exe`; execguest.WindowsProgram != want {
		t.Errorf("the service is at %s, and customize.ps1 installs %s", execguest.WindowsProgram, want)
	}
}
