// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package external_test

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance/runner"
	"github.com/hyperfleet/hyperfleet/hypervisor/example"
	"github.com/hyperfleet/hyperfleet/hypervisor/external"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/conform"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/server"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// serve runs a program in this process until the test ends, and waits until it listens.
func serve(t *testing.T, options server.Options, program server.Program) {
	t.Helper()

	ctx, cancel := context.WithCancel(context.Background())

	var ended sync.WaitGroup

	ended.Go(func() {
		if err := server.Run(ctx, options, program); err != nil {
			t.Error(err)
		}
	})

	t.Cleanup(func() {
		cancel()
		ended.Wait()
	})

	network, address := "tcp", options.Address
	if socket, isSocket := strings.CutPrefix(address, external.UnixScheme); isSocket {
		network, address = "unix", socket
	}

	timing.WaitUntil(t, "the program listens", func() bool {
		conn, err := net.Dial(network, address)
		if err == nil {
			conn.Close()
		}

		return err == nil
	})
}

// newExample returns the example provider as a program that serves the conformance cases. change replaces the provider of
// each connection.
func newExample(t *testing.T, change func(hypervisor.Connection) hypervisor.Connection) server.Program {
	t.Helper()

	lab := &example.Lab{Folder: t.TempDir()}

	return server.Program{
		Name: "example", Version: "1", Register: conform.Register(lab),
		New: func(config hypervisor.Config, options hypervisor.Options) (hypervisor.Connection, error) {
			cloud, err := lab.Cloud(config.Settings[example.SettingCase])
			if err != nil {
				return nil, err
			}

			p, err := example.Connect(cloud, config, options)
			if err != nil {
				return nil, err
			}

			return change(p), nil
		},
	}
}

// kindless is a provider whose errors have no kind.
type kindless struct{ hypervisor.Connection }

func (k kindless) Delete(ctx context.Context, ref hypervisor.MachineRef) error {
	if err := k.Connection.Delete(ctx, ref); err != nil {
		return errors.New(err.Error())
	}

	return nil
}

// restless is a provider that starts standby machines.
type restless struct{ hypervisor.Connection }

func (r restless) Ensure(ctx context.Context, spec hypervisor.MachineSpec) (hypervisor.Machine, error) {
	return r.Start(ctx, spec, func(context.Context) (hypervisor.Seed, error) { return hypervisor.Seed{}, nil })
}

func TestConform(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		change func(hypervisor.Connection) hypervisor.Connection
		only   string
		failed []string
	}{
		"correct provider": {change: func(p hypervisor.Connection) hypervisor.Connection { return p }},
		"errors without a kind": {
			change: func(p hypervisor.Connection) hypervisor.Connection { return kindless{p} },
			only:   "cases/another claim", failed: []string{"cases/another claim's machine is not changed"},
		},
		"starts standby machines": {
			change: func(p hypervisor.Connection) hypervisor.Connection { return restless{p} },
			only:   "cases/^a standby machine is created", failed: []string{"cases/a standby machine is created and not started"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			address := newSocket(t)
			serve(t, server.Options{Address: address}, newExample(t, c.change))

			results, err := conform.Run(t.Context(), conform.Options{Address: address, Runner: runner.Options{Only: c.only}})
			if err != nil || len(results) == 0 {
				t.Fatalf("got %d results: %v", len(results), err)
			}

			var failed []string

			for _, result := range results {
				if result.Status == runner.Failed {
					failed = append(failed, result.Name)
					t.Logf("%s: %s", result.Name, strings.Join(result.Messages, "\n"))
				}
			}

			if !slices.Equal(failed, c.failed) {
				t.Errorf("want the failed cases %q, got %q", c.failed, failed)
			}
		})
	}
}

func TestConformNeedsItsService(t *testing.T) {
	t.Parallel()

	address := newSocket(t)
	program := newExample(t, nil)
	program.Register = nil
	serve(t, server.Options{Address: address}, program)

	_, err := conform.Run(t.Context(), conform.Options{Address: address})
	if err == nil || !strings.Contains(err.Error(), "does not serve the service") {
		t.Errorf("got %v", err)
	}
}

// rich is a provider with all optional interfaces.
type rich struct {
	hypervisor.Connection

	startErr error
	closed   *atomic.Int32
}

// countedCloser counts how often a console is closed.
type countedCloser struct {
	io.WriteCloser

	closed *atomic.Int32
}

func (c countedCloser) Close() error {
	c.closed.Add(1)

	return c.WriteCloser.Close()
}

func (r rich) Start(
	ctx context.Context, spec hypervisor.MachineSpec, seed func(context.Context) (hypervisor.Seed, error),
) (hypervisor.Machine, error) {
	content, err := seed(ctx)
	if err != nil {
		return hypervisor.Machine{}, err
	}

	return hypervisor.Machine{
		ID: spec.ID, Owner: spec.Owner, State: hypervisor.StateRunning, Message: string(content.UserData) + string(content.Files["f"]),
	}, r.startErr
}

func (rich) ReadConsole(context.Context, hypervisor.MachineRef) ([]byte, error) {
	return []byte(strings.Repeat("x", hypervisor.MaxConsole) + "end"), nil
}

func (rich) Execute(_ context.Context, ref hypervisor.MachineRef, command []string) (hypervisor.ExecResult, error) {
	return hypervisor.ExecResult{Stdout: []byte(strings.Join(command, " ")), Stderr: []byte(ref.Owner.Name), ExitCode: 3}, nil
}

func (r rich) OpenTerminal(_ context.Context, ref hypervisor.MachineRef) (io.ReadWriteCloser, error) {
	if ref.ID == 0 {
		return nil, hypervisor.Errorf(hypervisor.NotFound, "NotFound", "machine 0 does not run")
	}

	read, write := io.Pipe()

	return struct {
		io.Reader
		io.WriteCloser
	}{read, countedCloser{write, r.closed}}, nil
}

func serveRich(t *testing.T, startErr error) (connection hypervisor.Connection, closed *atomic.Int32) {
	t.Helper()

	closed = &atomic.Int32{}
	address := newSocket(t)
	serve(t, server.Options{Address: address}, server.Program{
		New: func(config hypervisor.Config, options hypervisor.Options) (hypervisor.Connection, error) {
			p, err := example.Connect(example.NewCloud(""), config, options)

			return rich{p, startErr, closed}, err
		},
	})

	return connect(t, address, hypervisor.Options{}), closed
}

func TestOptionalInterfaces(t *testing.T) {
	t.Parallel()

	p, closed := serveRich(t, nil)
	ref := hypervisor.MachineRef{ID: 100, Owner: hypervisor.Owner{Name: "a"}}

	reader, ok := hypervisor.Find[hypervisor.ConsoleReader](p)
	if !ok {
		t.Fatal("the capability console is missing")
	}

	if text, err := reader.ReadConsole(t.Context(), ref); err != nil || len(text) != hypervisor.MaxConsole || !strings.HasSuffix(string(text), "xend") {
		t.Errorf("got %d bytes (%v)", len(text), err)
	}

	executor, ok := hypervisor.Find[hypervisor.Executor](p)
	if !ok {
		t.Fatal("the capability commands is missing")
	}

	got, err := executor.Execute(t.Context(), ref, []string{"uname", "-a"})
	if err != nil || string(got.Stdout) != "uname -a" || string(got.Stderr) != "a" || got.ExitCode != 3 {
		t.Errorf("got %+v (%v)", got, err)
	}

	opener, ok := hypervisor.Find[hypervisor.Terminal](p)
	if !ok {
		t.Fatal("the capability terminal is missing")
	}

	_, err = opener.OpenTerminal(t.Context(), hypervisor.MachineRef{})
	checkError(t, err, hypervisor.NotFound, "NotFound", "machine 0")

	ctx, cancel := context.WithCancel(t.Context())

	console, err := opener.OpenTerminal(ctx, ref)
	if err != nil {
		t.Fatal(err)
	}

	cancel() // the console stays open

	if _, err := console.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}

	buffer := make([]byte, 5)
	if _, err := io.ReadFull(console, buffer); err != nil || string(buffer) != "hello" {
		t.Errorf("got %q (%v)", buffer, err)
	}

	if err := console.Close(); err != nil {
		t.Error(err)
	}

	if _, err := console.Read(buffer); err == nil {
		t.Error("a closed console can be read")
	}

	p.Close()
	timing.WaitUntil(t, "the program closes the console", func() bool { return closed.Load() > 0 })

	time.Sleep(100 * time.Millisecond) // time for a second end

	if closed.Load() != 1 {
		t.Errorf("the console was closed %d times", closed.Load())
	}
}

// The provider of the example has no optional interface, although the type of its connection has their methods.
func TestMissingCapabilities(t *testing.T) {
	t.Parallel()

	address := newSocket(t)
	serve(t, server.Options{Address: address}, server.Program{
		New: func(config hypervisor.Config, options hypervisor.Options) (hypervisor.Connection, error) {
			return example.Connect(example.NewCloud(""), config, options)
		},
	})

	p := connect(t, address, hypervisor.Options{})

	if _, ok := hypervisor.Find[hypervisor.ConsoleReader](p); ok {
		t.Error("the provider keeps no output of consoles")
	}
}

func TestSeeds(t *testing.T) {
	t.Parallel()

	p, _ := serveRich(t, nil)
	spec := hypervisor.MachineSpec{ID: 100, Owner: hypervisor.Owner{UID: "u"}}

	m, err := p.Start(t.Context(), spec, func(context.Context) (hypervisor.Seed, error) {
		return hypervisor.Seed{UserData: []byte("user"), Files: map[string][]byte{"f": []byte("file")}}, nil
	})
	if err != nil || m.Message != "userfile" {
		t.Errorf("got %+v (%v)", m, err)
	}

	// The caller gets its own error, which it can compare.
	errSeed := errors.New("no credential")

	_, err = p.Start(t.Context(), spec, func(context.Context) (hypervisor.Seed, error) { return hypervisor.Seed{}, errSeed })
	if !errors.Is(err, errSeed) {
		t.Errorf("want %v, got %v", errSeed, err)
	}

	failing, _ := serveRich(t, hypervisor.Errorf(hypervisor.NoCapacity, "Full", "add memory"))

	_, err = failing.Start(t.Context(), spec, func(context.Context) (hypervisor.Seed, error) { return hypervisor.Seed{}, nil })
	checkError(t, err, hypervisor.NoCapacity, "Full", "add memory")
}
