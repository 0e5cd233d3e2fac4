// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt_test

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
)

// keptVolume matches the volume and the pool in the description of a machine's console.
var keptVolume = regexp.MustCompile(`examine volume (\S+) of storage pool ([\w-]+)`)

// TestConsoleOfKeptMachines runs the commands by which a person opens the console of a failed machine, on a machine that
// runs, and on one that is off.
func TestConsoleOfKeptMachines(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	p := s.connectUntilEnd()

	guide, ok := p.(hypervisor.ConsoleGuide)
	if !ok {
		t.Fatal("the provider does not describe consoles")
	}

	newSpec := func(name string, isLinked bool) hypervisor.MachineSpec {
		return hypervisor.MachineSpec{
			Owner:    hypervisor.Owner{Namespace: "ci", Name: name + "-" + s.name, UID: "uid-" + name},
			Template: hypervisor.TemplateRef{Name: template, Kind: hypervisor.TemplateStorageVolume},
			Shape:    hypervisor.Shape{CPU: 1, Memory: 64 * mebibyte, Linked: isLinked},
		}
	}

	// A full clone has a definition, so it can be started again. Its ISO is gone.
	defined := newSpec("defined", false)
	_, err := conformance.Create(t.Context(), p, &defined, newSeed)
	s.must(err)

	ref := hypervisor.MachineRef{ID: defined.ID, Owner: defined.Owner}
	text := guide.DescribeConsole(ref, defined.Node)

	commands := commandPattern.FindAllStringSubmatch(text, -1)
	if !strings.Contains(text, "log in to host host-1") || len(commands) != 2 {
		t.Fatalf("want a host and two commands in: %s", text)
	}

	console, start := commands[0][1], commands[1][1]

	s.openConsole(console)
	s.powerOff(defined.ID)
	runScript(t, shared, t.TempDir(), start)
	s.openConsole(console)
	s.must(conformance.Delete(t.Context(), p, ref))

	// A linked clone is transient. When it is off, only its disk is left.
	transient := newSpec("transient", true)
	_, err = conformance.Create(t.Context(), p, &transient, newSeed)
	s.must(err)

	ref = hypervisor.MachineRef{ID: transient.ID, Owner: transient.Owner}
	text = guide.DescribeConsole(ref, transient.Node)
	s.openConsole(commandPattern.FindStringSubmatch(text)[1])
	s.powerOff(transient.ID)

	volume := keptVolume.FindStringSubmatch(text)
	if len(volume) < 3 || volume[2] != s.name {
		t.Fatalf("want the volume in pool %s in: %s", s.name, text)
	}

	if _, err := os.Stat(filepath.Join(s.dir, volume[1])); err != nil {
		t.Errorf("the disk is not the volume in %q: %v", text, err)
	}

	s.must(conformance.Delete(t.Context(), p, ref))
}

// openConsole runs a command that opens a console, in a terminal, until it is connected, and closes the console.
func (s *site) openConsole(command string) {
	s.t.Helper()

	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()

	terminal := exec.CommandContext(ctx, "script", "-qec", command, "/dev/null")
	terminal.Env = append(os.Environ(), "LIBVIRT_DEFAULT_URI="+shared.URI(), "HOME="+s.t.TempDir())

	input, err := terminal.StdinPipe()
	s.must(err)

	output, err := terminal.StdoutPipe()
	s.must(err)
	s.must(terminal.Start())

	var shown strings.Builder

	for buffer := make([]byte, 1<<10); !strings.Contains(shown.String(), "Escape character is"); {
		n, err := output.Read(buffer)
		shown.Write(buffer[:n])

		if err != nil {
			s.t.Fatalf("%s: %v\n%s", command, err, shown.String())
		}
	}

	// virsh discards what it gets before it has set up its terminal, which is after it shows the text. So Ctrl-] is
	// repeated until virsh ends.
	go func() {
		for ctx.Err() == nil {
			if _, err := input.Write([]byte("\x1d")); err != nil {
				return
			}

			time.Sleep(100 * time.Millisecond)
		}
	}()

	_, _ = io.Copy(io.Discard, output)

	s.must(terminal.Wait())
}
