// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	golibvirt "github.com/digitalocean/go-libvirt"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
)

// defineBootMenu defines a template whose firmware waits for the key ESC, and then shows a menu.
func (s *site) defineBootMenu(name string) {
	s.t.Helper()

	s.mu.Lock()
	s.foreign = append(s.foreign, name)
	s.mu.Unlock()

	s.use(func(rpc *golibvirt.Libvirt) error {
		_, err := rpc.DomainDefineXMLFlags(fmt.Sprintf(`<domain type='qemu'><name>%s</name><memory unit='MiB'>64</memory>
<os><type arch='x86_64' machine='q35'>hvm</type><bootmenu enable='yes' timeout='60000'/><bios useserial='yes'/></os><devices>
<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='%s/%s'/><target dev='vda' bus='virtio'/></disk>
<serial type='pty'/></devices></domain>`, name, s.dir, template), 0)

		return err
	})
}

// A live console shows the output of the machine and passes input on. What it shows is kept as well.
func TestTerminal(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	p := s.connect(t, hypervisor.Options{OperatorUID: "operator"})
	t.Cleanup(p.Close)

	terminal, ok := p.(hypervisor.Terminal)
	reader, isReader := p.(hypervisor.ConsoleReader)

	if !ok || !isReader {
		t.Fatal("the provider has no consoles")
	}

	spec := hypervisor.MachineSpec{
		Owner:    hypervisor.Owner{Namespace: "ci", Name: "claim", UID: "uid"},
		Template: hypervisor.TemplateRef{Kind: hypervisor.TemplateDomain, Name: "menu-" + s.name},
		Shape:    hypervisor.Shape{CPU: 1, Memory: 64 * mebibyte, Linked: true},
	}

	s.defineBootMenu(spec.Template.Name)

	_, err := conformance.Create(t.Context(), p, &spec, newSeed)
	s.must(err)

	ref := hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}
	console, err := terminal.OpenTerminal(t.Context(), ref)
	s.must(err)

	shown := &screen{}

	go func() { _, _ = io.Copy(shown, console) }() // until it is closed

	keeps := func(text string) func() bool {
		return func() bool {
			kept, err := reader.ReadConsole(t.Context(), ref)

			return err == nil && strings.Contains(string(kept), text)
		}
	}

	// A key that comes before the firmware asks for it has no effect.
	s.eventually("the firmware asks for a key", keeps("Press ESC"))

	_, err = console.Write([]byte("\x1b"))
	s.must(err)
	s.eventually("the menu is shown", func() bool { return shown.has("Select boot device") })
	s.eventually("the menu is kept as well", keeps("Select boot device"))
	s.must(console.Close())

	s.powerOff(spec.ID)

	s.eventually("the machine is off", func() bool {
		m, err := p.Get(t.Context(), ref)

		return err == nil && m.State == hypervisor.StateStopped
	})

	if _, err := terminal.OpenTerminal(t.Context(), ref); !hypervisor.Is(err, hypervisor.NotFound) {
		t.Errorf("want an error of kind NotFound for a machine that is off, got %v", err)
	}

	s.must(conformance.Delete(t.Context(), p, ref))
}

// A closed provider closes its consoles, also those that nobody reads.
func TestTerminalEndsWithProvider(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	p, other := s.connect(t, hypervisor.Options{OperatorUID: "operator"}), s.connect(t, hypervisor.Options{OperatorUID: "operator"})
	t.Cleanup(other.Close)

	spec := hypervisor.MachineSpec{
		Owner:    hypervisor.Owner{Namespace: "ci", Name: "claim", UID: "uid"},
		Template: hypervisor.TemplateRef{Name: template}, Shape: hypervisor.Shape{CPU: 1, Memory: 64 * mebibyte, Linked: true},
	}

	_, err := conformance.Create(t.Context(), p, &spec, newSeed)
	s.must(err)

	ref := hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}

	terminal, ok := p.(hypervisor.Terminal)
	if !ok {
		t.Fatal("the provider has no consoles")
	}

	console, err := terminal.OpenTerminal(t.Context(), ref)
	s.must(err)

	defer console.Close()

	ended := make(chan struct{})

	go func() {
		p.Close()
		close(ended)
	}()

	select {
	case <-ended:
	case <-time.After(troubleTimeout):
		t.Error("the provider waits for its console")
	}

	s.must(conformance.Delete(t.Context(), other, ref))
}

// delayer passes the connections of a provider on to libvirtd. It holds the response to the call that takes a console over.
type delayer struct {
	listener net.Listener
	// asked is closed when the call was made, and released lets the response pass. closed is closed when the provider has
	// closed its first connection.
	asked, released, closed chan struct{}
}

// newDelayer listens until the test ends.
func newDelayer(t *testing.T, path string) *delayer {
	t.Helper()

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}

	d := &delayer{listener: listener, asked: make(chan struct{}), released: make(chan struct{}), closed: make(chan struct{})}
	ended := make(chan struct{})

	go func() {
		defer close(ended)

		for n := 0; ; n++ {
			conn, err := listener.Accept()
			if err != nil {
				return
			}

			go d.pass(conn, n == 0)
		}
	}()

	t.Cleanup(func() {
		_ = listener.Close()
		<-ended
	})

	return d
}

// pass copies the messages of a connection in both directions.
func (d *delayer) pass(client net.Conn, isFirst bool) {
	defer client.Close()

	server, err := net.Dial("unix", shared.Socket())
	if err != nil {
		return
	}

	defer server.Close()

	const procedureStart, openConsole = 12, 201

	isHeld := atomic.Bool{}

	go func() {
		defer client.Close()

		for buffer := make([]byte, 1<<16); ; {
			n, err := server.Read(buffer)
			if err != nil {
				return
			}

			if isHeld.Load() {
				<-d.released
			}

			if _, err := client.Write(buffer[:n]); err != nil {
				return
			}
		}
	}()

	for buffer := make([]byte, 1<<16); ; {
		n, err := client.Read(buffer)
		if err != nil {
			if isFirst {
				close(d.closed)
			}

			return
		}

		if !isFirst && n >= procedureStart+4 && binary.BigEndian.Uint32(buffer[procedureStart:]) == openConsole && !isHeld.Swap(true) {
			close(d.asked)
		}

		if _, err := server.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// The connection to a host stays open while a console is taken over, because libvirtd 9.0 hangs or crashes otherwise.
func TestTerminalIsOpenBeforeItsHostIsLeft(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	socket := filepath.Join(s.dir, "delayed")
	delayed := newDelayer(t, socket)
	p, spec := s.createThrough(socket, newOperator())

	terminal, ok := p.(hypervisor.Terminal)
	if !ok {
		t.Fatal("the provider has no consoles")
	}

	opened := make(chan error, 1)

	go func() {
		console, err := terminal.OpenTerminal(context.WithoutCancel(t.Context()), hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner})
		if err == nil {
			_ = console.Close()
		}

		opened <- err
	}()

	<-delayed.asked

	ended := make(chan struct{})

	go func() {
		p.Close()
		close(ended)
	}()

	select {
	case <-delayed.closed:
		t.Error("the provider has left the host while it took a console over")
	case <-opened:
		t.Error("a console is open before libvirtd has responded")
	case <-time.After(time.Second):
	}

	close(delayed.released)
	<-ended
	<-delayed.closed
}

// eventually waits until ok returns true.
func (s *site) eventually(description string, ok func() bool) {
	s.t.Helper()

	for deadline := time.Now().Add(troubleTimeout); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("timed out: %s", description)
		}
	}
}

// screen is what a console has shown.
type screen struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.text.Write(p)
}

func (s *screen) has(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return strings.Contains(s.text.String(), text)
}
