// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/pve"
)

// Scripts that stand for Wine. The program changes the registry and prints the medium.
const (
	fakeWine = `#!/bin/sh
cd "$WINEPREFIX" || exit 1
printf 'args=%s %s %s\n' "$*" "$(cat dosdevices/e:/.windows-label)" "$(cat dosdevices/e:/user-data)"
echo changed >system.reg
`
	fakeWineserver = `#!/bin/sh
echo "$@" >>"$WINEPREFIX/../wineserver"
`
)

// A VM with an ostype of Windows runs its program under Wine, with its own registry and with its medium as a drive, and no
// process stays.
func TestWindowsGuest(t *testing.T) {
	t.Parallel()
	programs, image, work := t.TempDir(), t.TempDir(), t.TempDir()
	registry := strings.Repeat("registry\n", 200_000) // larger than the files that a VM may change
	for name, text := range map[string]string{
		filepath.Join(programs, "wine"): fakeWine, filepath.Join(programs, "wineserver"): fakeWineserver,
		filepath.Join(image, "system.reg"): registry, filepath.Join(image, "dosdevices", "keep"): "",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	a := startCluster(t, func(m *pve.Model) {
		m.Templates[0].Config = map[string]string{"ostype": "win11"}
		m.Guest = pve.Guest{Kind: pve.GuestExec, Wine: filepath.Join(programs, "wine"), ImageDir: image, WorkDir: work}
	})
	a.clone("1000", nil)
	iso := buildISO(t, "cidata", map[string]string{"user-data": "#cloud-config", "meta-data": "instance-id: i\n"})
	a.waitForTask(a.upload("pve1", "local", "iso", "seed.iso", iso).data)
	a.mustDo("PUT", confPath, formData{"ide2": "local:iso/seed.iso,media=cdrom"})
	a.mustRunTask("POST", powerPath+"start", nil)
	a.waitForPowerOff()

	want := `args=C:\Program Files\HyperFleet\bootstrap-service.exe --root C:\ cidata #cloud-config`
	if log := a.s.Console(1000); !strings.Contains(log, want) || strings.Contains(log, "cloud-init: wrote") {
		t.Errorf("console %q, want %q", log, want)
	}
	if text, err := os.ReadFile(filepath.Join(image, "system.reg")); err != nil || string(text) != registry {
		t.Errorf("the VM has changed the registry of its image: %v", err)
	}
	stops, _ := filepath.Glob(filepath.Join(work, "*", "wineserver"))
	if len(stops) != 1 {
		t.Errorf("Wine was not stopped: %v", stops)
	}
}
