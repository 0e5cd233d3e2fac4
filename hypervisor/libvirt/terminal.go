// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	golibvirt "github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

var (
	_ hypervisor.Terminal     = (*Provider)(nil)
	_ hypervisor.Executor     = (*Provider)(nil)
	_ hypervisor.ConsoleGuide = (*Provider)(nil)
)

// Fields of the header of libvirt's messages, and their values for the stream of a console.
const (
	headerBytes               = minMessage
	procedureStart, typeStart = 12, 16
	serialStart, statusStart  = 20, 24
	procedureOpenConsole      = 201
	messageCall, messageReply = 0, 1
	messageStream             = 3
	statusOK, statusContinue  = 0, 2
	maxInput                  = 64 << 10
	// agentTimeout is how many seconds libvirt waits for a guest agent, first until the agent is synchronized
	// and then for its response. The timeout of a call must be longer than both together, because it ends the
	// connection to the host, and a guest must not be able to cause that.
	agentTimeout             = 10
	agentCallTimeout         = 3 * agentTimeout * time.Second
	agentInterval            = 200 * time.Millisecond
	kindExec, kindExecStatus = "guest-exec", "guest-exec-status"
	signalExitCode           = 128 // as shells report it
)

// DescribeConsole names the commands of a host; see hypervisor.ConsoleGuide. A transient machine that is off has no domain,
// so it cannot be started again.
func (p *Provider) DescribeConsole(ref hypervisor.MachineRef, node string) string {
	name := hypervisor.MachineName(ref.Owner, ref.ID)

	pool := p.poolName()
	if h, ok := p.byName[node]; ok {
		pool = h.config.StoragePool
	}

	return fmt.Sprintf("log in to host %s and run `virsh console --force %s` (if it is off, run `virsh start %s` first; "+
		"if libvirt no longer has it, only its disk is left: examine volume %s of storage pool %s)",
		node, name, name, p.identity.volumeName(ref.ID, ref.Owner.UID, transientVolumeSuffix(node)), pool)
}

// terminal is a live console over a connection of its own. The library reads the console's stream, but cannot write to
// it, so terminal writes the messages of the stream itself. Nothing else is sent while the console is open.
type terminal struct {
	*io.PipeReader

	wire *wire

	mu sync.Mutex
	// header is the header of the library's call that has opened the console.
	header []byte
	// release ends the wait for the end of the provider.
	release func() bool
}

// Write sends input to the console.
func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()

	for sent := 0; sent < len(p); sent += maxInput {
		part := p[sent:min(sent+maxInput, len(p))]
		message := append(make([]byte, 0, headerBytes+len(part)), t.header...)
		binary.BigEndian.PutUint32(message, uint32(headerBytes+len(part))) //nolint:gosec // at most maxInput
		binary.BigEndian.PutUint32(message[typeStart:], messageStream)
		binary.BigEndian.PutUint32(message[statusStart:], statusContinue)

		if _, err := t.wire.Write(append(message, part...)); err != nil {
			return sent, err
		}
	}

	return len(p), nil
}

// Close closes the console and its connection.
func (t *terminal) Close() error {
	t.release()

	return errors.Join(t.wire.Close(), t.PipeReader.Close())
}

// viewer passes output on. It drops the output after the viewer has gone, because the library must read on.
type viewer struct{ *io.PipeWriter }

func (v viewer) Write(p []byte) (int, error) {
	_, _ = v.PipeWriter.Write(p)

	return len(p), nil
}

// recorder passes messages on, and keeps the header of the call that opens a console until libvirtd has responded.
type recorder struct {
	*wire

	mu   sync.Mutex
	call []byte
	// head is the beginning of the message that is being read, and skip the number of its remaining bytes.
	head []byte
	skip int
	// opened receives the header of the call when libvirtd has opened the console.
	opened chan []byte
}

func (r *recorder) Write(p []byte) (int, error) {
	if len(p) >= headerBytes && binary.BigEndian.Uint32(p[procedureStart:]) == procedureOpenConsole &&
		binary.BigEndian.Uint32(p[typeStart:]) == messageCall {
		r.mu.Lock()
		r.call = append([]byte(nil), p[:headerBytes]...)
		r.mu.Unlock()
	}

	return r.wire.Write(p)
}

func (r *recorder) Read(p []byte) (int, error) {
	n, err := r.wire.Read(p)
	r.follow(p[:n])

	return n, err
}

// follow looks for the response to the call that opens a console.
func (r *recorder) follow(p []byte) {
	for len(p) > 0 {
		if r.skip > 0 {
			n := min(r.skip, len(p))
			r.skip, p = r.skip-n, p[n:]

			continue
		}

		n := min(headerBytes-len(r.head), len(p))
		r.head, p = append(r.head, p[:n]...), p[n:]

		if len(r.head) < headerBytes {
			return
		}

		r.skip = int(binary.BigEndian.Uint32(r.head)) - headerBytes // at least 0, as wire has checked

		if binary.BigEndian.Uint32(r.head[procedureStart:]) == procedureOpenConsole &&
			binary.BigEndian.Uint32(r.head[typeStart:]) == messageReply &&
			binary.BigEndian.Uint32(r.head[statusStart:]) == statusOK {
			r.confirm()
		}

		r.head = r.head[:0]
	}
}

// confirm passes the header of the call on, once.
func (r *recorder) confirm() {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.call != nil {
		r.opened <- r.call
		r.call = nil
	}
}

// OpenTerminal opens the live console of a running machine; see hypervisor.Terminal.
func (p *Provider) OpenTerminal(ctx context.Context, ref hypervisor.MachineRef) (io.ReadWriteCloser, error) {
	h, d, err := p.findRunning(ctx, ref)
	if err != nil {
		return nil, err
	}

	kept := p.consoles.ensure(d.uuid)

	var out *terminal

	err = p.wrapCall(ctx, hypervisor.Call{Operation: "openTerminal", Write: true}, func() error {
		out, err = h.openTerminal(ctx, d, kept)

		return err
	})

	return out, h.classify("open the console of machine "+d.name, readCall, err)
}

// openTerminal opens the console, which ends an earlier connection to it. libvirtd 9.0 hangs or crashes if the
// earlier connection is closed at the same time, so openTerminal keeps the host connected and waits for
// libvirtd's response.
func (h *host) openTerminal(ctx context.Context, d domain, kept io.Writer) (*terminal, error) {
	h.opening.RLock()
	defer h.opening.RUnlock()

	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()

	conn, err := h.dial(ctx)
	if err != nil {
		return nil, err
	}

	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })

	recorded := &recorder{wire: conn, opened: make(chan []byte, 1)}
	rpc := golibvirt.NewWithDialer(dialers.NewAlreadyConnected(recorded))

	if err := rpc.ConnectToURI(golibvirt.ConnectURI(h.endpoint.driver)); err != nil {
		_ = conn.Close()

		return nil, err
	}

	reader, writer := io.Pipe()
	ended := make(chan error, 1)

	h.provider.goroutines.Go(func() {
		err := rpc.DomainOpenConsole(golibvirt.Domain{Name: d.name, UUID: d.uuid, ID: -1}, nil,
			io.MultiWriter(kept, viewer{writer}), uint32(golibvirt.DomainConsoleForce))
		if err == nil {
			err = io.EOF
		}

		ended <- err
		_ = writer.CloseWithError(err)
		_ = conn.Close()
	})

	select {
	case header := <-recorded.opened:
		if !stop() {
			_ = reader.Close()

			return nil, ctx.Err()
		}

		release := context.AfterFunc(h.provider.ctx, func() { // the provider waits for the goroutine
			_ = conn.Close()
			_ = writer.CloseWithError(io.EOF)
		})

		return &terminal{PipeReader: reader, wire: conn, header: header, release: release}, nil
	case err := <-ended:
		return nil, err
	case <-ctx.Done():
		_ = reader.Close()

		return nil, ctx.Err()
	}
}

func (p *Provider) findRunning(ctx context.Context, ref hypervisor.MachineRef) (*host, domain, error) {
	h, d, err := p.locate(ctx, ref)
	if err != nil {
		return nil, d, err
	}

	if h == nil || !d.isOurs || !d.isActive {
		return nil, d, hypervisor.Errorf(hypervisor.NotFound, "NotRunning", "machine %s does not run",
			hypervisor.MachineName(ref.Owner, ref.ID))
	}

	return h, d, nil
}

// agentCommand is a command of the guest agent.
type agentCommand struct {
	Execute   string `json:"execute"`
	Arguments any    `json:"arguments,omitempty"`
}

type execArguments struct {
	Path          string   `json:"path"`
	Args          []string `json:"arg"`
	CaptureOutput bool     `json:"capture-output"`
}

type statusArguments struct {
	PID int `json:"pid"`
}

// agentExec is the response of the guest agent to guest-exec.
type agentExec struct {
	Return struct{ PID int } `json:"return"`
}

// agentStatus is the response of the guest agent to guest-exec-status.
type agentStatus struct {
	Return struct {
		Exited   bool
		ExitCode int    `json:"exitcode"`
		Signal   int    `json:"signal"`
		Out      string `json:"out-data"`
		Err      string `json:"err-data"`
	} `json:"return"`
}

// result returns the result of a command that has ended.
func (s agentStatus) result() (hypervisor.ExecResult, error) {
	out := hypervisor.ExecResult{ExitCode: s.Return.ExitCode}
	if s.Return.Signal != 0 {
		out.ExitCode = signalExitCode + s.Return.Signal
	}

	var outErr, errErr error

	out.Stdout, outErr = base64.StdEncoding.DecodeString(s.Return.Out)
	out.Stderr, errErr = base64.StdEncoding.DecodeString(s.Return.Err)

	return out, errors.Join(outErr, errErr)
}

// Execute runs a command by the guest agent; see hypervisor.Executor.
func (p *Provider) Execute(ctx context.Context, ref hypervisor.MachineRef, command []string) (hypervisor.ExecResult, error) {
	h, d, err := p.findRunning(ctx, ref)
	if err != nil {
		return hypervisor.ExecResult{}, err
	}

	var started agentExec

	arguments := execArguments{Path: command[0], Args: command[1:], CaptureOutput: true}
	if err := h.askAgent(ctx, d, newWrite("agentExec"), agentCommand{kindExec, arguments}, &started); err != nil {
		return hypervisor.ExecResult{}, err
	}

	statusCommand := agentCommand{kindExecStatus, statusArguments{started.Return.PID}}

	for {
		var status agentStatus
		if err := h.askAgent(ctx, d, newRead("agentExecStatus"), statusCommand, &status); err != nil {
			return hypervisor.ExecResult{}, err
		}

		if status.Return.Exited {
			return status.result()
		}

		timer := p.clock.NewTimer(agentInterval)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()

			return hypervisor.ExecResult{}, fmt.Errorf("run a command in machine %s: %w", d.name, ctx.Err())
		}
	}
}

// askAgent sends a command to the guest agent and decodes its response.
func (h *host) askAgent(ctx context.Context, d domain, op operation, command agentCommand, response any) error {
	text, err := json.Marshal(command)
	if err != nil {
		return fmt.Errorf("encode a command for the guest agent: %w", err)
	}

	op.timeout = agentCallTimeout

	var answer golibvirt.OptString

	err = h.call(ctx, op, func(rpc *golibvirt.Libvirt) error {
		var err error

		answer, err = rpc.QEMUDomainAgentCommand(golibvirt.Domain{Name: d.name, UUID: d.uuid, ID: -1}, string(text), agentTimeout, 0)

		return err
	})
	if hasCode(err, golibvirt.ErrAgentUnresponsive, golibvirt.ErrArgumentUnsupported, golibvirt.ErrOperationUnsupported) {
		return &hypervisor.Error{
			Kind: hypervisor.Rejected, Reason: "GuestAgentUnavailable",
			Message: fmt.Sprintf("run a command in machine %s: its guest agent does not respond: install qemu-guest-agent in the image, "+
				"and wait until the machine has booted", d.name),
			Err: err,
		}
	}

	if err != nil {
		return err
	}

	if len(answer) == 0 {
		return fmt.Errorf("run a command in machine %s: the guest agent has sent no response", d.name)
	}

	if err := json.Unmarshal([]byte(answer[0]), response); err != nil {
		return fmt.Errorf("decode the response of the guest agent of machine %s: %w", d.name, err)
	}

	return nil
}
