// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package scaleway

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Server is the simulator's state of a server.
type Server struct {
	ID, Name, Type, OS, Zone          string
	Status                            string // a status of the API
	IP                                string
	Delivered, DeletionScheduled      bool
	Password                          string
	SSHKeys                           []string // the public keys of the last installation
	CreatedAt, DeletableAt, BusyUntil time.Time
	Installs                          int // the number of installations
}

// Key is a registered SSH key.
type Key struct {
	ID, Name, PublicKey string
	Disabled            bool
	CreatedAt           time.Time
}

// Simulator simulates one project. New creates a Simulator, which serves the API as an http.Handler.
type Simulator struct {
	opts Options
	mux  *http.ServeMux

	mu         sync.Mutex
	instanceID uint64 // a part of all ids, so that the ids of two simulators differ
	idCount    int
	servers    []*Server // oldest first
	keys       []Key
	faults     []*Fault
	calls      map[string]int
	violations []Violation
}

// New returns a simulator without servers.
func New(opts Options) *Simulator {
	opts.setDefaults()

	s := &Simulator{opts: opts, calls: map[string]int{}, instanceID: rand.Uint64N(1 << 48)}
	s.mux = s.routes()

	return s
}

// AddServer adds a delivered server, for example one of a pool.
func (s *Simulator) AddServer(name, serverType string) Server {
	s.mu.Lock()
	defer s.mu.Unlock()

	server := s.installServer(name, serverType, s.opts.OS[0], 0)
	s.completeDue()

	return *server
}

// SetStock sets how many servers of a type can be ordered.
func (s *Simulator) SetStock(serverType string, stock int) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.opts.Types = slices.Clone(s.opts.Types)
	for i := range s.opts.Types {
		if s.opts.Types[i].Name == serverType {
			s.opts.Types[i].Stock = stock
		}
	}
}

// SetError sets the status of a server to error.
func (s *Simulator) SetError(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if server := s.findServer(id); server != nil {
		server.Status, server.BusyUntil = statusError, time.Time{}
	}
}

// Rename renames a server, as another client would.
func (s *Simulator) Rename(id, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if server := s.findServer(id); server != nil {
		server.Name = name
	}
}

// RemoveServer removes a server at once, as another client would.
func (s *Simulator) RemoveServer(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.servers = slices.DeleteFunc(s.servers, func(server *Server) bool { return server.ID == id })
}

// Inject adds a fault. The first fault that matches a call applies.
func (s *Simulator) Inject(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.faults = append(s.faults, &f)
}

// ClearFaults removes all faults.
func (s *Simulator) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.faults = nil
}

// Servers returns all servers.
func (s *Simulator) Servers() []Server {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.completeDue()

	out := make([]Server, 0, len(s.servers))
	for _, server := range s.servers {
		out = append(out, *server)
	}

	return out
}

// Keys returns the registered SSH keys.
func (s *Simulator) Keys() []Key {
	s.mu.Lock()
	defer s.mu.Unlock()

	return slices.Clone(s.keys)
}

// AddKey registers an SSH key.
func (s *Simulator) AddKey(key Key) {
	s.mu.Lock()
	defer s.mu.Unlock()

	key.ID, key.CreatedAt = s.newID(), s.now()
	s.keys = append(s.keys, key)
}

// Calls returns the number of calls by method and path. Ids in a path are replaced by "ID".
func (s *Simulator) Calls() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return maps.Clone(s.calls)
}

// Violations returns the recorded violations of the API's contract.
func (s *Simulator) Violations() []Violation {
	s.mu.Lock()
	defer s.mu.Unlock()

	return slices.Clone(s.violations)
}

// recordViolation logs and records a violation of the contract. The caller holds the lock.
func (s *Simulator) recordViolation(r *http.Request, message string) {
	s.opts.Log.Error("contract violation", "method", r.Method, "path", r.URL.Path, "error", message)
	s.violations = append(s.violations, Violation{Method: r.Method, Path: r.URL.Path, Message: message})
}

// The statuses of a server in the API.
const (
	statusStarting     = "starting"
	statusReady        = "ready"
	statusError        = "error"
	statusRebooting    = "rebooting"
	statusReinstalling = "reinstalling"
)

// installServer creates a server that becomes ready after a time. The caller holds the lock.
func (s *Simulator) installServer(name, serverType, os string, duration time.Duration) *Server {
	now := s.now()
	server := &Server{
		ID: s.newID(), Name: name, Type: serverType, OS: os, Zone: s.opts.Zone, Status: statusStarting,
		CreatedAt: now, DeletableAt: now.Add(s.opts.MinimumLease), BusyUntil: now.Add(duration),
	}
	s.setCredentials(server)
	s.servers = append(s.servers, server)

	return server
}

// setCredentials gives a server a new password and the project's SSH keys, as an installation does.
// The caller holds the lock.
func (s *Simulator) setCredentials(server *Server) {
	server.Installs++
	server.Password = fmt.Sprintf("pw-%s-%d", server.ID[:8], server.Installs)
	server.SSHKeys = nil

	for _, key := range s.keys {
		if !key.Disabled {
			server.SSHKeys = append(server.SSHKeys, key.PublicKey)
		}
	}
}

// completeDue deletes the servers whose scheduled deletion is due, and completes the operations that
// are due. The caller holds the lock.
func (s *Simulator) completeDue() {
	now := s.now()

	s.servers = slices.DeleteFunc(s.servers, func(server *Server) bool {
		if server.DeletionScheduled && !now.Before(server.DeletableAt) {
			s.reportChange(server, Deleted)

			return true
		}

		return false
	})

	for _, server := range s.servers {
		if server.BusyUntil.IsZero() || now.Before(server.BusyUntil) {
			continue
		}

		previous := server.Status
		server.Status, server.Delivered, server.BusyUntil = statusReady, true, time.Time{}

		switch previous {
		case statusStarting:
			server.IP = s.allocateAddress(server)
		case statusRebooting:
			s.reportChange(server, Rebooted)
		case statusReinstalling:
			s.reportChange(server, Reinstalled)
		default:
		}
	}
}

func (s *Simulator) allocateAddress(server *Server) string {
	if s.opts.Address != nil {
		return s.opts.Address(*server)
	}

	return fmt.Sprintf("192.0.2.%d", s.idCount%250+1)
}

func (s *Simulator) reportChange(server *Server, event Event) {
	if s.opts.OnChange != nil {
		s.opts.OnChange(*server, event)
	}
}

func (s *Simulator) now() time.Time { return s.opts.Clock.Now().UTC() }

func (s *Simulator) newID() string {
	s.idCount++

	return fmt.Sprintf("%08x-5ca1-4e4a-9000-%012x", s.idCount, s.instanceID)
}

func (s *Simulator) findServer(id string) *Server {
	i := slices.IndexFunc(s.servers, func(server *Server) bool { return server.ID == id })
	if i < 0 {
		return nil
	}

	return s.servers[i]
}

// takeFault returns the fault of a call and counts the use. It returns an empty fault if no fault
// matches. The caller holds the lock.
func (s *Simulator) takeFault(r *http.Request) Fault {
	for i, f := range s.faults {
		if f.Method != "" && f.Method != r.Method || !strings.Contains(r.URL.Path, f.Path) {
			continue
		}

		match := *f

		if f.Times == 1 {
			s.faults = slices.Delete(s.faults, i, i+1)
		} else if f.Times > 1 {
			f.Times--
		}

		return match
	}

	return Fault{}
}
