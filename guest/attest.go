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

// agentDir is the agent's folder, for root alone: jobs have no way to its socket.
const agentDir = "/run/hyperfleet/spire"

// How long the machine tries to attest.
const (
	attestDeadline = 5 * time.Minute
	// clockPatience is how long a machine that has just booted may take to set its clock.
	clockPatience = time.Minute
)

// attest has the machine prove who it is: it runs the image's spire-agent, and waits until
// that has the machine's SVID.
func (s *Service) attest(ctx context.Context, cfg *guest.Config) error {
	if cfg.SPIFFE == nil || !cfg.SPIFFE.Enabled {
		return nil
	}

	s.report.report(guest.PhaseAttesting, cfg.SPIFFE.SPIFFEID)

	program := s.path(cmp.Or(cfg.SPIFFE.AgentPath, guest.AgentPath))
	if err := checkProgram(program); err != nil {
		return failed(guest.ReasonAttestationUnavailable, "the image has no spire-agent: %w: install it there", err)
	}

	dir := s.path(agentDir)

	files, err := s.writeAgent(ctx, dir, cfg.SPIFFE)
	if err == nil {
		a := &attestation{service: s, cfg: cfg.SPIFFE, program: program, files: files}
		s.identity, err = a.run(ctx)
	}

	if err != nil {
		s.remove(dir)

		return err
	}

	s.remove(files.config)
	cfg.SPIFFE.JoinToken = "" // it is worth nothing any more
	s.report.report(guest.PhaseAttested, cfg.SPIFFE.SPIFFEID)

	return nil
}

// checkProgram says what a program lacks to be run.
func checkProgram(file string) error {
	info, err := os.Stat(file)

	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("there is no %s", file)
	case err != nil:
		return fmt.Errorf("look for spire-agent: %w", err)
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return fmt.Errorf("%s is not a program", file)
	default:
		return nil
	}
}

// writeAgent writes what the agent reads. The join token is there for as long as the agent
// needs it.
func (s *Service) writeAgent(ctx context.Context, dir string, cfg *guest.SPIFFE) (agentFiles, error) {
	if err := makePrivate(dir); err != nil {
		return agentFiles{}, failed(guest.ReasonAttestationUnavailable, "make the folder of spire-agent: %w", err)
	}

	plugin, err := s.nodeAttestor(ctx, dir, cfg)
	if err != nil {
		return agentFiles{}, err
	}

	files, err := writeAgentFiles(dir, cfg, plugin)
	if err != nil {
		return agentFiles{}, failed(guest.ReasonAttestationUnavailable, "configure spire-agent: %w", err)
	}

	return files, nil
}

// nodeAttestor is the agent's configuration of the method.
func (s *Service) nodeAttestor(ctx context.Context, dir string, cfg *guest.SPIFFE) (string, error) {
	switch cfg.Method {
	case guest.AttestJoinToken:
		return `NodeAttestor "join_token" { plugin_data {} }`, nil
	case guest.AttestTPM:
		return s.deviceIdentity(ctx, dir, cfg)
	default:
		return "", failed(guest.ReasonAttestationUnavailable, "this bootstrap service cannot attest by %s", cfg.Method)
	}
}

// makePrivate makes an empty folder for its owner alone.
func makePrivate(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}

	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil { //nolint:gosec // the status file is there, for all to read
		return err
	}

	return os.Mkdir(dir, 0o700)
}

// forgetIdentity ends the agent and removes all that is left of it. What it does not find is
// no error.
func (s *Service) forgetIdentity() {
	if s.identity == nil {
		return
	}

	s.identity.close()
	s.identity = nil
	s.remove(s.path(agentDir))
}

// attestation is one machine's attempt to attest.
type attestation struct {
	service *Service
	cfg     *guest.SPIFFE
	program string
	files   agentFiles

	last     trouble
	restarts int
	// deadline ends it; skew does so while the machine's clock is wrong.
	deadline, skew <-chan time.Time
}

// run starts the agent, again where it ends of its own accord, until there is an identity or
// no hope for one.
func (a *attestation) run(ctx context.Context) (*identity, error) {
	s := a.service
	a.deadline = s.clock.After(attestDeadline)

	for {
		id, err := a.once(ctx)
		if id != nil || err != nil {
			return id, err
		}

		// An agent that does not reach its server ends as well, after a while.
		a.restarts++
		if a.restarts > maxRestarts && a.last.reason != guest.ReasonAttestationTimeout {
			return nil, failed(guest.ReasonAttestationUnavailable, "spire-agent was started %d times and ended each time: %s",
				a.restarts, cmp.Or(a.last.text, "it said nothing"))
		}

		s.log.Warn("spire-agent is started again", "restart", a.restarts, "error", a.last.text)

		select {
		case <-ctx.Done():
			return nil, stopped()
		case <-a.deadline:
			return nil, a.late()
		case <-s.clock.After(s.opts.RestartPause):
		}
	}
}

// once runs the agent once; without an identity and an error it has ended.
func (a *attestation) once(ctx context.Context) (*identity, error) {
	agent, err := a.service.startAgent(a.program, a.files)
	if err != nil {
		return nil, failed(guest.ReasonAttestationUnavailable, "start %s: %w", a.program, err)
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	found := make(chan *identity, 1)

	go func() { found <- a.service.identify(ctx, a.files.socket, a.cfg.SPIFFEID) }()

	id, err := a.follow(ctx, agent, found)
	if id != nil {
		id.agent = agent

		return id, nil
	}

	cancel()
	agent.stop()

	if late := <-found; late != nil {
		late.close()
	}

	return nil, err
}

// follow waits for the identity, or for the reason why there will be none.
func (a *attestation) follow(ctx context.Context, agent *agent, found chan *identity) (*identity, error) {
	for {
		select {
		case id := <-found:
			if id == nil { // ctx has ended
				found <- nil

				return nil, stopped()
			}

			if has := id.name(); has != a.cfg.SPIFFEID {
				id.close()
				found <- nil

				return nil, failed(guest.ReasonIdentityMismatch, "the machine is to be %s, but its SVID is of %s", a.cfg.SPIFFEID, has)
			}

			return id, nil
		case t := <-agent.troubles:
			if err := a.take(t); err != nil {
				return nil, err
			}
		case <-agent.exited:
			return nil, a.drain(agent)
		case <-a.skew:
			return nil, failed(guest.ReasonClockSkew, "for %s: %s: set the clock of the machine's host", clockPatience, a.last.text)
		case <-a.deadline:
			return nil, a.late()
		case <-ctx.Done():
			return nil, stopped()
		}
	}
}

// take notes a trouble; an error is its end.
func (a *attestation) take(t trouble) error {
	a.last = t

	switch {
	case t.final:
		return failed(t.reason, "%s", t.text)
	case t.reason != guest.ReasonClockSkew:
		a.skew = nil
	case a.skew == nil:
		a.skew = a.service.clock.After(clockPatience)
	}

	return nil
}

// drain takes what an agent said before it ended.
func (a *attestation) drain(agent *agent) error {
	for {
		select {
		case t := <-agent.troubles:
			if err := a.take(t); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

func (a *attestation) late() error {
	return failed(guest.ReasonAttestationTimeout, "the machine got no SVID within %s: %s", attestDeadline,
		cmp.Or(a.last.text, "the SPIRE server "+a.cfg.ServerAddress+" has no entry for it that this agent was told of"))
}

// stopped is the end of a machine that was told to stop while it attested.
func stopped() error {
	return ended(guest.ReasonTerminated, "the service was told to stop while it attested")
}
