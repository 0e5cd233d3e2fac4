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

// Server is a server as the simulator has it.
type Server struct {
	ID, Name, Type, OS, Zone  string
	Status                    string // in the API's words
	IP                        string
	Delivered, Leaving        bool
	Password                  string
	SSHKeys                   []string // public keys that it was installed with
	Created, Deletable, Until time.Time
	Installs                  int // how many times it was installed
}

// Key is a registered SSH key.
type Key struct {
	ID, Name, PublicKey string
	Disabled            bool
	Created             time.Time
}

// Simulator is one project. Make it with New and serve it.
type Simulator struct {
	opts Options
	mux  *http.ServeMux

	mu         sync.Mutex
	own        uint64 // in all ids: those of two simulators differ
	ids        int
	servers    []*Server // the oldest first
	keys       []Key
	faults     []*Fault
	calls      map[string]int
	violations []Violation
}

// New gives a simulator.
func New(opts Options) *Simulator {
	opts.setDefaults()

	s := &Simulator{opts: opts, calls: map[string]int{}, own: rand.Uint64N(1 << 48)}
	s.mux = s.routes()

	return s
}

// Add puts in a server that is delivered, such as one of a pool.
func (s *Simulator) Add(name, serverType string) Server {
	s.mu.Lock()
	defer s.mu.Unlock()

	server := s.install(name, serverType, s.opts.OS[0], 0)
	s.settle()

	return *server
}

// SetStock says how many servers of a type are left.
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

// Break puts a server into the state error.
func (s *Simulator) Break(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if server := s.find(id); server != nil {
		server.Status, server.Until = statusError, time.Time{}
	}
}

// Rename names a server, as somebody else would.
func (s *Simulator) Rename(id, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if server := s.find(id); server != nil {
		server.Name = name
	}
}

// Remove takes a server away, as somebody else would.
func (s *Simulator) Remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.servers = slices.DeleteFunc(s.servers, func(server *Server) bool { return server.ID == id })
}

// Inject adds a fault. The first that is for a call is it.
func (s *Simulator) Inject(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.faults = append(s.faults, &f)
}

// Heal ends all faults.
func (s *Simulator) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.faults = nil
}

// Servers gives all servers there are.
func (s *Simulator) Servers() []Server {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.settle()

	out := make([]Server, 0, len(s.servers))
	for _, server := range s.servers {
		out = append(out, *server)
	}

	return out
}

// Keys gives the registered SSH keys.
func (s *Simulator) Keys() []Key {
	s.mu.Lock()
	defer s.mu.Unlock()

	return slices.Clone(s.keys)
}

// AddKey registers an SSH key.
func (s *Simulator) AddKey(key Key) {
	s.mu.Lock()
	defer s.mu.Unlock()

	key.ID, key.Created = s.id(), s.now()
	s.keys = append(s.keys, key)
}

// Calls counts calls by method and path, with ID for ids.
func (s *Simulator) Calls() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return maps.Clone(s.calls)
}

// Violations gives the breaches of the contract that were seen.
func (s *Simulator) Violations() []Violation {
	s.mu.Lock()
	defer s.mu.Unlock()

	return slices.Clone(s.violations)
}

// violate notes a breach. The lock is held.
func (s *Simulator) violate(r *http.Request, message string) {
	s.opts.Log.Error("contract violation", "method", r.Method, "path", r.URL.Path, "error", message)
	s.violations = append(s.violations, Violation{Method: r.Method, Path: r.URL.Path, Message: message})
}

// The API's words for how a server is.
const (
	statusStarting     = "starting"
	statusReady        = "ready"
	statusError        = "error"
	statusRebooting    = "rebooting"
	statusReinstalling = "reinstalling"
)

// install makes a server that is ready after a time. The lock is held.
func (s *Simulator) install(name, serverType, os string, takes time.Duration) *Server {
	now := s.now()
	server := &Server{
		ID: s.id(), Name: name, Type: serverType, OS: os, Zone: s.opts.Zone, Status: statusStarting,
		Created: now, Deletable: now.Add(s.opts.Lease), Until: now.Add(takes),
	}
	s.equip(server)
	s.servers = append(s.servers, server)

	return server
}

// equip gives a server what an installation brings. The lock is held.
func (s *Simulator) equip(server *Server) {
	server.Installs++
	server.Password = fmt.Sprintf("pw-%s-%d", server.ID[:8], server.Installs)
	server.SSHKeys = nil

	for _, key := range s.keys {
		if !key.Disabled {
			server.SSHKeys = append(server.SSHKeys, key.PublicKey)
		}
	}
}

// settle lets all that is due happen. The lock is held.
func (s *Simulator) settle() {
	now := s.now()

	s.servers = slices.DeleteFunc(s.servers, func(server *Server) bool {
		if server.Leaving && !now.Before(server.Deletable) {
			s.changed(server, Deleted)

			return true
		}

		return false
	})

	for _, server := range s.servers {
		if server.Until.IsZero() || now.Before(server.Until) {
			continue
		}

		was := server.Status
		server.Status, server.Delivered, server.Until = statusReady, true, time.Time{}

		switch was {
		case statusStarting:
			server.IP = s.address(server)
		case statusRebooting:
			s.changed(server, Rebooted)
		case statusReinstalling:
			s.changed(server, Reinstalled)
		default:
		}
	}
}

func (s *Simulator) address(server *Server) string {
	if s.opts.Address != nil {
		return s.opts.Address(*server)
	}

	return fmt.Sprintf("192.0.2.%d", s.ids%250+1)
}

func (s *Simulator) changed(server *Server, event Event) {
	if s.opts.Changed != nil {
		s.opts.Changed(*server, event)
	}
}

func (s *Simulator) now() time.Time { return s.opts.Clock.Now().UTC() }

func (s *Simulator) id() string {
	s.ids++

	return fmt.Sprintf("%08x-5ca1-4e4a-9000-%012x", s.ids, s.own)
}

func (s *Simulator) find(id string) *Server {
	i := slices.IndexFunc(s.servers, func(server *Server) bool { return server.ID == id })
	if i < 0 {
		return nil
	}

	return s.servers[i]
}

// fault gives the fault of a call, and uses it up. The lock is held.
func (s *Simulator) fault(r *http.Request) Fault {
	for i, f := range s.faults {
		if f.Method != "" && f.Method != r.Method || !strings.Contains(r.URL.Path, f.Path) {
			continue
		}

		out := *f

		if f.Times == 1 {
			s.faults = slices.Delete(s.faults, i, i+1)
		} else if f.Times > 1 {
			f.Times--
		}

		return out
	}

	return Fault{}
}
