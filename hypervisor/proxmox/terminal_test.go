// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// newShellModel returns a cluster whose operator may open consoles and run commands, and whose guests boot at once.
func newShellModel() pve.Model {
	m := fastModel()
	m.Delays.Agent = 0

	for i, role := range m.Roles {
		if role.Name == "HyperFleetVM" {
			m.Roles[i].Privileges = append(slices.Clone(role.Privileges), "VM.Console", "VM.GuestAgent.Unrestricted", "VM.Monitor")
		}
	}

	return m
}

// startShellMachine starts a machine and returns it with the two interfaces for shells.
func startShellMachine(t *testing.T, s *pve.Server, change ...func(*hypervisor.Config, *hypervisor.Options)) (
	hypervisor.MachineRef, hypervisor.Terminal, hypervisor.Executor,
) {
	t.Helper()

	p := connect(t, s, change...)
	terminal, isTerminal := p.(hypervisor.Terminal)
	executor, isExecutor := p.(hypervisor.Executor)

	if !isTerminal || !isExecutor {
		t.Fatal("the provider has no shells")
	}

	spec := newSpec(1)
	if _, err := conformance.Create(t.Context(), p, &spec, seed); err != nil {
		t.Fatal(err)
	}

	return hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}, terminal, executor
}

// readUntil reads until the console has shown the text.
func readUntil(t *testing.T, console io.Reader, text string) {
	t.Helper()

	var shown strings.Builder

	part := make([]byte, 64)

	for !strings.Contains(shown.String(), text) {
		n, err := console.Read(part)
		shown.Write(part[:n])

		if err != nil {
			t.Fatalf("the console has shown %q, and not %q: %v", shown.String(), text, err)
		}
	}
}

// A console passes keys and output on until the machine is off. It opens with a token and with a ticket.
func TestTerminal(t *testing.T) {
	t.Parallel()

	for name, change := range map[string]func(*hypervisor.Config, *hypervisor.Options){
		"token": func(*hypervisor.Config, *hypervisor.Options) {}, "password": usePassword,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := pvetest.New(t, newShellModel())
			ref, terminal, _ := startShellMachine(t, s, change)

			console, err := terminal.OpenTerminal(t.Context(), ref)
			if err != nil {
				t.Fatal(err)
			}

			long := strings.Repeat("x", 100<<10) // more than one message
			readUntil(t, console, "starting serial terminal on interface serial0")

			if _, err := io.WriteString(console, "root\r"+long+"end"); err != nil {
				t.Fatal(err)
			}

			readUntil(t, console, "root\r\n")
			readUntil(t, console, "xend")

			s.PowerOff(ref.ID)

			if _, err := io.ReadAll(console); err != nil {
				t.Errorf("the console of a machine that is off ends with %v", err)
			}

			if err := console.Close(); err != nil {
				t.Error(err)
			}

			_, err = terminal.OpenTerminal(t.Context(), ref)
			requireKind(t, err, hypervisor.NotFound)

			ref.Owner.UID = "another"
			_, err = terminal.OpenTerminal(t.Context(), ref)
			requireKind(t, err, hypervisor.NotFound)
		})
	}
}

// A closed connection closes its consoles.
func TestTerminalEndsWithConnection(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, newShellModel())
	p := connect(t, s)
	spec := newSpec(1)

	if _, err := conformance.Create(t.Context(), p, &spec, seed); err != nil {
		t.Fatal(err)
	}

	terminal, ok := p.(hypervisor.Terminal)
	if !ok {
		t.Fatal("the provider has no consoles")
	}

	console, err := terminal.OpenTerminal(t.Context(), hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner})
	if err != nil {
		t.Fatal(err)
	}

	p.Close()

	_, _ = io.ReadAll(console) // ends
}

func requireKind(t *testing.T, err error, kind hypervisor.Kind, texts ...string) {
	t.Helper()

	if !hypervisor.Is(err, kind) {
		t.Errorf("want an error of kind %s, got %v", kind, err)

		return
	}

	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("the error has no %q: %v", text, err)
		}
	}
}

// If a console cannot be opened, the error says what to change.
func TestTerminalRefusals(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		change func(*pve.Model)
		texts  []string
	}{
		"no privilege": {func(m *pve.Model) { m.Roles = fastModel().Roles }, []string{"lacks VM.Console", "pveum acl modify"}},
		"no serial port": {
			func(m *pve.Model) { m.Templates[0].Config = map[string]string{"serial0": "/dev/ttyS0"} },
			[]string{"add serial0: socket to its template"},
		},
		"token on version 8": {func(m *pve.Model) { m.Version = "8.4.1" }, []string{"needs Proxmox VE 9.2"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			model := newShellModel()
			test.change(&model)

			ref, terminal, _ := startShellMachine(t, pvetest.New(t, model))
			_, err := terminal.OpenTerminal(t.Context(), ref)
			requireKind(t, err, hypervisor.Rejected, test.texts...)
		})
	}
}

// The guest agent runs commands, and returns their output as it is, and their exit code.
func TestExecute(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, newShellModel())
	ref, _, executor := startShellMachine(t, s)

	run := func(command ...string) (hypervisor.ExecResult, error) {
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()

		return executor.Execute(ctx, ref, command)
	}

	if got, err := run("echo", "a b", "ü"); err != nil || string(got.Stdout) != "a b ü\n" || got.ExitCode != 0 {
		t.Errorf("echo: %q, %d, %v", got.Stdout, got.ExitCode, err)
	}

	if got, err := run("false"); err != nil || got.ExitCode != 1 {
		t.Errorf("false: %d, %v", got.ExitCode, err)
	}

	if _, err := run("no-such-program"); err == nil || !strings.Contains(err.Error(), "No such file or directory") {
		t.Errorf("a program that does not exist: %v", err)
	}

	_, err := run("echo", "\xff")
	requireKind(t, err, hypervisor.Rejected, "UTF-8")

	s.PowerOff(ref.ID)

	_, err = run("true")
	requireKind(t, err, hypervisor.NotFound)
}

// If commands cannot be run, the error says what to change.
func TestExecuteRefusals(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		change func(*pve.Model)
		text   string
	}{
		"no privilege": {func(m *pve.Model) { m.Roles = fastModel().Roles }, "lacks VM.GuestAgent.Unrestricted"},
		"no agent": {
			func(m *pve.Model) { m.Templates[0].Config = map[string]string{"agent": "0"} }, "install qemu-guest-agent in the image",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			model := newShellModel()
			test.change(&model)

			ref, _, executor := startShellMachine(t, pvetest.New(t, model))
			_, err := executor.Execute(t.Context(), ref, []string{"true"})
			requireKind(t, err, hypervisor.Rejected, test.text)
		})
	}
}
