// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package provider

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/hyperfleet/hyperfleet/hypervisor/external"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/providerpb"
	"github.com/hyperfleet/hyperfleet/kit/procrun"
)

const (
	// startTimeout is how long a program may take until it serves its health.
	startTimeout = time.Minute
	// probeTimeout limits the look for another program at the address.
	probeTimeout = 2 * time.Second
)

// process is the provider's program, which the command starts.
type process struct {
	address string
	tls     *tls.Config
	program []string

	mu      sync.Mutex
	folder  string
	running *procrun.Process
}

// checkFree returns an error if another program listens at the address. The cases would test that one.
func (p *process) checkFree(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()

	err := p.checkHealth(ctx)
	if code := status.Code(err); code == codes.Unavailable || code == codes.DeadlineExceeded {
		return nil
	}

	if _, isStatus := status.FromError(err); !isStatus {
		return err
	}

	return fmt.Errorf("start program: another program listens at %s: stop it, or leave out the program after --", p.address)
}

// start starts the program and waits until it reports that it is healthy.
func (p *process) start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.folder == "" {
		folder, err := os.MkdirTemp("", "hyperfleet-conform-")
		if err != nil {
			return fmt.Errorf("create folder for the program's log: %w", err)
		}

		p.folder = folder
	}

	running, err := procrun.Start(ctx, procrun.Spec{
		Path: p.program[0], Args: p.program[1:], LogPath: filepath.Join(p.folder, "log"),
	})
	if err != nil {
		return err
	}

	p.running = running

	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	return running.WaitReady(ctx, func(ctx context.Context) error {
		select {
		case <-running.Done(): // WaitReady reports its log
			return procrun.ErrExited
		default:
			return p.checkHealth(ctx)
		}
	})
}

func (p *process) checkHealth(ctx context.Context) error {
	conn, err := external.Dial(p.address, p.tls)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing was written

	request := &grpc_health_v1.HealthCheckRequest{Service: providerpb.Hypervisor_ServiceDesc.ServiceName}

	response, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, request)
	if err == nil && response.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		err = fmt.Errorf("check health of %s: it is %s", p.address, response.GetStatus())
	}

	return err
}

// restart kills the program and starts it again. The case notices if the program does not start.
func (p *process) restart(ctx context.Context) {
	p.mu.Lock()
	_ = p.running.Kill()
	p.mu.Unlock()

	if err := p.start(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "provider conform: restart program:", err)
	}
}

// stop stops the program and deletes its log.
func (p *process) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.running != nil {
		_ = p.running.Stop()
	}

	_ = os.RemoveAll(p.folder)
}
