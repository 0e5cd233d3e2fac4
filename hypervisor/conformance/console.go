// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"strings"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// testConsole checks that the output of a machine's console is kept while it runs and after it has powered off, and only
// for its owner. A provider that keeps no output must not implement hypervisor.ConsoleReader.
func testConsole(e *env) {
	p := e.connect(operatorA)

	reader, isReader := hypervisor.Find[hypervisor.ConsoleReader](p)
	if isReader != (e.ConsoleText != "") {
		e.Fatalf("the provider implements ConsoleReader: %t, and the console's text is %q", isReader, e.ConsoleText)
	}

	if !isReader {
		return
	}

	c := e.newClaim(1)
	m := e.mustCreate(p, c)

	read := func() string {
		text, err := reader.ReadConsole(e.Context(), c.ref())
		if err != nil || len(text) > hypervisor.MaxConsole {
			e.Fatalf("read %d bytes of the console: %v", len(text), err)
		}

		return string(text)
	}

	e.eventually("the console has the machine's output", func() bool { return strings.Contains(read(), e.ConsoleText) })
	e.PowerOff(m.ID)
	e.eventually("the machine is off", func() bool {
		found, err := p.Get(e.Context(), c.ref())

		return err == nil && found.State == hypervisor.StateStopped
	})

	if text := read(); !strings.Contains(text, e.ConsoleText) {
		e.Errorf("the output is lost when the machine is off: %q", text)
	}

	other := c.ref()
	other.Owner.UID = "another"
	_, err := reader.ReadConsole(e.Context(), other)
	e.assertKind(err, hypervisor.NotFound)

	e.mustDelete(p, c)

	_, err = reader.ReadConsole(e.Context(), c.ref())
	e.assertKind(err, hypervisor.NotFound)
}
