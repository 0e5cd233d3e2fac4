// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guides_test

import (
	"regexp"
	"strings"
	"testing"
)

// optionalRole finds the roles that only some installations need: for a resource pool, shells and devices.
var optionalRole = regexp.MustCompile("HyperFleet(Pool|Shell|Device)")

// forOthers matches the commands that tests on a real Proxmox VE do not need: for devices, and without a resource pool.
var forOthers = regexp.MustCompile("HyperFleetDevice| /vms --users")

// TestStartPage checks that the pages that repeat commands of the permissions guide have the same ones: no role or grant of
// the guide is missing, except optional ones, and the first page for runners has no command of its own.
func TestStartPage(t *testing.T) {
	t.Parallel()

	page, guide := readFile(t, "../../docs/start/runners.md"), readFile(t, permissionsGuide)
	tests := readFile(t, testsGuide)
	found := 0

	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "pveum ") && !strings.HasPrefix(line, "pvesm ") {
			continue
		}

		found++

		if !strings.Contains(guide, "\n"+line) {
			t.Errorf("the permissions guide does not have the command %s", line)
		}
	}

	if found == 0 {
		t.Error("the page has no command for Proxmox VE: the search is broken")
	}

	for _, command := range append(roleCommand.FindAllString(guide, -1), grantCommand.FindAllString(guide, -1)...) {
		if !optionalRole.MatchString(command) && !strings.Contains(page, "\n"+command+"\n") {
			t.Errorf("docs/start/runners.md does not have the command %s", command)
		}

		if isForTests := !forOthers.MatchString(command); isForTests && !strings.Contains(tests, "\n"+command+"\n") {
			t.Errorf("%s does not have the command %s", testsGuide, command)
		}
	}
}
