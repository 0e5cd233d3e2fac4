// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/platform/conditions"
	"github.com/hyperfleet/hyperfleet/platform/entity"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

// defaultStuckAfter is the default of Options.StuckAfter.
const defaultStuckAfter = 30 * time.Minute

// maxHolders is the number of leases whose last holder is remembered, to distinguish an acquisition
// from a renewal.
const maxHolders = 1000

// Options configure New.
type Options struct {
	// Store has the state. Required.
	Store *store.Store
	// Entities are the registered kinds. Required.
	Entities []platform.Entity
	// Schemas is the document with the schemas of specs (entity.LoadSchemas). It is nil if there is
	// none.
	Schemas *openapi3.T
	// Issuers are the trusted issuers of tokens. If there are none, every caller has all
	// permissions.
	Issuers []platform.Issuer
	// Roles are the permissions of callers with tokens.
	Roles []platform.RoleBinding
	// Adapters may report on every kind, in addition to the kind's required adapters. AnyAdapter
	// allows all adapters.
	Adapters []string
	// Tenant configures to which tenant a resource belongs, and so who can see it.
	Tenant platform.Tenant
	// StuckAfter is the time after which a resource that is not reconciled counts as stuck.
	// Default: 30m.
	StuckAfter time.Duration
	// Clock is the clock. Default: the real clock.
	Clock clock.Clock
	// Log is the logger. Default: no log.
	Log *slog.Logger
	// Metrics registers the metrics. Default: they are not registered.
	Metrics prometheus.Registerer
	// Calls counts and times requests to the issuers of tokens. Default: they are not counted.
	Calls *metrics.CallMetrics
	// Stopping ends when the process starts to shut down. Requests that wait for changes then
	// return immediately. Default: it never ends.
	Stopping context.Context
}

// Server handles requests to the fleet API below BasePath.
type Server struct {
	options  Options
	store    *store.Store
	clock    clock.Clock
	log      *slog.Logger
	registry *entity.Registry
	rules    map[string]*conditions.Rules
	contract *openapi3.T
	issuers  []issuer
	metrics  *serverMetrics
	routes   *http.ServeMux
	// holders are the last holders of leases, by the name of the lease.
	holders *lru.Cache
}

// New returns the handler of the API. The error names all problems of the registered
// kinds.
func New(options Options) (http.Handler, error) {
	options.Clock = cmp.Or[clock.Clock](options.Clock, clock.RealClock{})
	options.Log = cmp.Or(options.Log, slog.New(slog.DiscardHandler))
	options.Stopping = cmp.Or(options.Stopping, context.Background())
	options.StuckAfter = cmp.Or(max(options.StuckAfter, 0), defaultStuckAfter)

	s := &Server{
		options: options, store: options.Store, clock: options.Clock, log: options.Log, routes: http.NewServeMux(),
		holders: lru.New(maxHolders),
	}

	if err := s.load(); err != nil {
		return nil, err
	}

	var err error

	if s.contract, err = openapi3.NewLoader().LoadFromData(openapi.Document()); err != nil {
		return nil, fmt.Errorf("load the OpenAPI document: %w", err)
	}

	if err := errors.Join(s.loadIssuers(), ValidateTenant(options.Tenant, len(options.Issuers) > 0)); err != nil {
		return nil, err
	}

	if s.metrics, err = s.newMetrics(options.Metrics); err != nil {
		return nil, err
	}

	if err := s.registerRoutes(); err != nil {
		return nil, err
	}

	return s, nil
}

// ValidateEntities returns all problems of registered kinds and their rules.
func ValidateEntities(entities []platform.Entity, schemas *openapi3.T) error {
	s := &Server{options: Options{Entities: entities, Schemas: schemas}, clock: clock.RealClock{}}

	return s.load()
}

// load creates the registry and compiles the rules of conditions.
func (s *Server) load() error {
	registry, err := entity.New(s.options.Entities, s.options.Schemas)
	problems := []error{err}

	s.registry, s.rules = registry, map[string]*conditions.Rules{}

	for i, declared := range s.options.Entities {
		rules, err := conditions.Compile(declared.Conditions, s.clock)
		if err != nil {
			problems = append(problems, fmt.Errorf("entities[%d] (%s): %w", i, declared.Kind, err))
		}

		s.rules[declared.Kind] = rules
	}

	return errors.Join(problems...)
}

// newMalformed returns an error for a value that could not be parsed although it matches the OpenAPI document, for example
// a number that is too large for its type.
func newMalformed(err error) error {
	return newInvalid(entity.FieldError{Field: "request", Message: err.Error()})
}
