// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/test/realpve"
)

// The console of a running machine opens with the operator's account, and ends when the machine is off.
func TestConsole(t *testing.T) {
	l := newLifecycle(t, realpve.GetSite(t))

	p := l.connect(nil)
	defer p.Close()

	if err := l.createMachine(t.Context(), p); err != nil {
		t.Fatal(err)
	}

	terminal, ok := p.(hypervisor.Terminal)
	if !ok {
		t.Fatal("the provider has no consoles")
	}

	console, err := terminal.OpenTerminal(t.Context(), hypervisor.MachineRef{ID: l.spec.ID, Owner: l.spec.Owner})
	if err == nil {
		// A console that does not end would hang the test.
		watchdog := time.AfterFunc(waitTimeout, func() { _ = console.Close() })
		defer watchdog.Stop()

		_, err = console.Write([]byte("\r"))
	}

	if err != nil {
		t.Fatal(err)
	}

	var shown strings.Builder

	part := make([]byte, 1024)

	for isOff := false; ; {
		n, err := console.Read(part)
		shown.Write(part[:n])

		if err != nil {
			break
		}

		if !isOff && strings.Contains(shown.String(), "starting serial terminal") {
			isOff = true

			l.part.PowerOff(l.spec.ID)
		}
	}

	if !strings.Contains(shown.String(), "starting serial terminal") {
		t.Errorf("the console has shown %q", shown.String())
	}

	if err := l.deleteMachine(t.Context(), p); err != nil {
		t.Fatal(err)
	}

	l.requireNothingLeft()
}
