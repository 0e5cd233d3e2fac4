// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// agentDir is the agent's directory. Only root can access it, so jobs cannot reach the agent's socket.
const agentDir = "/run/hyperfleet/spire"

// Timeouts of the attestation.
const (
	attestTimeout = 5 * time.Minute
	// clockSyncTimeout is how long a machine that has just booted may take to set its clock.
	clockSyncTimeout = time.Minute
)

// attest runs the image's spire-agent and waits until the agent has the machine's SVID. It does nothing
// if the configuration does not enable SPIFFE.
func (s *Service) attest(ctx context.Context, cfg *guest.Config) error {
	if cfg.SPIFFE == nil || !cfg.SPIFFE.Enabled {
		return nil
	}

	s.reporter.reportPhase(guest.PhaseAttesting, cfg.SPIFFE.SPIFFEID)

	program := s.path(cmp.Or(cfg.SPIFFE.AgentPath, guest.AgentPath))
	if err := checkProgram(program); err != nil {
		return newFailure(guest.ReasonAttestationUnavailable, "the image has no spire-agent: %w: install it in the image", err)
	}

	dir := s.path(agentDir)

	files, err := s.configureAgent(ctx, dir, cfg.SPIFFE)
	if err == nil {
		a := &attestation{service: s, cfg: cfg.SPIFFE, program: program, files: files}
		s.identity, err = a.run(ctx)
	}

	if err != nil {
		s.removeAll(dir)

		return err
	}

	s.removeAll(files.config)
	cfg.SPIFFE.JoinToken = "" // the token is valid for one attestation only
	s.reporter.reportPhase(guest.PhaseAttested, cfg.SPIFFE.SPIFFEID)

	return nil
}

// checkProgram returns an error if the file does not exist or is not executable.
func checkProgram(file string) error {
	info, err := os.Stat(file)

	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s does not exist", file)
	case err != nil:
		return fmt.Errorf("check spire-agent: %w", err)
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return fmt.Errorf("%s is not an executable file", file)
	default:
		return nil
	}
}

// configureAgent writes the files that the agent reads. They contain the join token, so the caller must
// delete the configuration file after the attestation.
func (s *Service) configureAgent(ctx context.Context, dir string, cfg *guest.SPIFFE) (agentFiles, error) {
	if err := createPrivateDir(dir); err != nil {
		return agentFiles{}, newFailure(guest.ReasonAttestationUnavailable, "create the directory of spire-agent: %w", err)
	}

	plugin, err := s.configureNodeAttestor(ctx, dir, cfg)
	if err != nil {
		return agentFiles{}, err
	}

	files, err := writeAgentFiles(dir, cfg, plugin)
	if err != nil {
		return agentFiles{}, newFailure(guest.ReasonAttestationUnavailable, "configure spire-agent: %w", err)
	}

	return files, nil
}

// configureNodeAttestor returns the agent's configuration of the attestation method. For method tpm, it first
// gets a device identity.
func (s *Service) configureNodeAttestor(ctx context.Context, dir string, cfg *guest.SPIFFE) (string, error) {
	switch cfg.Method {
	case guest.AttestJoinToken:
		return `NodeAttestor "join_token" { plugin_data {} }`, nil
	case guest.AttestTPM:
		return s.createDeviceIdentity(ctx, dir, cfg)
	default:
		return "", newFailure(guest.ReasonAttestationUnavailable,
			"this bootstrap service does not support attestation method %s", cfg.Method)
	}
}

// createPrivateDir creates an empty directory that only its owner can access. It deletes an existing one
// first.
func createPrivateDir(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}

	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil { //nolint:gosec // everyone may read the status file in it
		return err
	}

	return os.Mkdir(dir, 0o700)
}

// removeIdentity stops the agent and deletes its files. It does nothing if the machine has no identity.
func (s *Service) removeIdentity() {
	if s.identity == nil {
		return
	}

	s.identity.close()
	s.identity = nil
	s.removeAll(s.path(agentDir))
}

// attestation holds the state of the machine's attestation.
type attestation struct {
	service *Service
	cfg     *guest.SPIFFE
	program string
	files   agentFiles

	lastFailure attestFailure
	restarts    int
	// deadline ends the attestation. skewDeadline ends it early if the machine's clock stays wrong; it is nil
	// while the clock is not known to be wrong.
	deadline, skewDeadline <-chan time.Time
}

// run starts the agent, and restarts it if it exits, until the machine has an identity or a terminal
// failure occurs.
func (a *attestation) run(ctx context.Context) (*identity, error) {
	s := a.service
	a.deadline = s.clock.After(attestTimeout)

	for {
		id, err := a.runAgent(ctx)
		if id != nil || err != nil {
			return id, err
		}

		// An agent that cannot reach its server also exits after a while. Only the deadline ends its
		// restarts.
		a.restarts++
		if a.restarts > maxRestarts && a.lastFailure.reason != guest.ReasonAttestationTimeout {
			return nil, newFailure(guest.ReasonAttestationUnavailable, "spire-agent was started %d times and exited each time: %s",
				a.restarts, cmp.Or(a.lastFailure.text, "it logged nothing"))
		}

		s.log.Warn("spire-agent has exited and is restarted", "restart", a.restarts, "error", a.lastFailure.text)

		select {
		case <-ctx.Done():
			return nil, newStoppedError()
		case <-a.deadline:
			return nil, a.newTimeoutError()
		case <-s.clock.After(s.opts.RestartDelay):
		}
	}
}

// runAgent runs the agent once. It returns neither an identity nor an error if the agent has exited.
func (a *attestation) runAgent(ctx context.Context) (*identity, error) {
	agent, err := a.service.startAgent(a.program, a.files)
	if err != nil {
		return nil, newFailure(guest.ReasonAttestationUnavailable, "start %s: %w", a.program, err)
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	identities := make(chan *identity, 1)

	go func() { identities <- a.service.fetchIdentity(ctx, a.files.socket, a.cfg.SPIFFEID) }()

	id, err := a.waitForIdentity(ctx, agent, identities)
	if id != nil {
		id.agent = agent

		return id, nil
	}

	cancel()
	agent.stop()

	if unused := <-identities; unused != nil {
		unused.close()
	}

	return nil, err
}

// waitForIdentity waits for the identity. It returns an error if the attestation has failed, and neither an
// identity nor an error if the agent has exited. Unless it returns the identity, the caller can still receive
// one value from the channel.
func (a *attestation) waitForIdentity(ctx context.Context, agent *agent, identities chan *identity) (*identity, error) {
	for {
		select {
		case id := <-identities:
			if id == nil { // ctx is done
				identities <- nil // for the caller, which receives one more value

				return nil, newStoppedError()
			}

			if actual := id.spiffeID(); actual != a.cfg.SPIFFEID {
				id.close()
				identities <- nil

				return nil, newFailure(guest.ReasonIdentityMismatch, "the machine must be %s, but its SVID is for %s",
					a.cfg.SPIFFEID, actual)
			}

			return id, nil
		case failure := <-agent.failures:
			if err := a.recordFailure(failure); err != nil {
				return nil, err
			}
		case <-agent.exited:
			return nil, a.drainFailures(agent)
		case <-a.skewDeadline:
			return nil, newFailure(guest.ReasonClockSkew,
				"the machine's clock was wrong for %s: %s: set the clock of the machine's host", clockSyncTimeout, a.lastFailure.text)
		case <-a.deadline:
			return nil, a.newTimeoutError()
		case <-ctx.Done():
			return nil, newStoppedError()
		}
	}
}

// recordFailure records the failure. It returns an error if the failure is terminal.
func (a *attestation) recordFailure(failure attestFailure) error {
	a.lastFailure = failure

	switch {
	case failure.isTerminal:
		return newFailure(failure.reason, "%s", failure.text)
	case failure.reason != guest.ReasonClockSkew:
		a.skewDeadline = nil // the cause is no longer the clock
	case a.skewDeadline == nil:
		a.skewDeadline = a.service.clock.After(clockSyncTimeout)
	}

	return nil
}

// drainFailures records the failures that an agent logged before it exited.
func (a *attestation) drainFailures(agent *agent) error {
	for {
		select {
		case failure := <-agent.failures:
			if err := a.recordFailure(failure); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

func (a *attestation) newTimeoutError() error {
	return newFailure(guest.ReasonAttestationTimeout, "the machine got no SVID within %s: %s", attestTimeout,
		cmp.Or(a.lastFailure.text, "the SPIRE server "+a.cfg.ServerAddress+" sent the agent no entry for the machine"))
}

// newStoppedError returns the end of a machine that is stopped during the attestation.
func newStoppedError() error {
	return newFinish(guest.ReasonTerminated, "the service was stopped during the attestation")
}
