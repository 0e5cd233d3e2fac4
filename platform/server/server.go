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

// defaultStuckAfter is when a resource that is not reconciled counts as stuck.
const defaultStuckAfter = 30 * time.Minute

// maxHolders of leases are known, to tell who takes one from who renews it.
const maxHolders = 1000

// Options of New.
type Options struct {
	// Store keeps the state. Required.
	Store *store.Store
	// Entities are the registered kinds. Required.
	Entities []platform.Entity
	// Schemas is the document with the schemas of specs (entity.LoadSchemas), nil if there
	// is none.
	Schemas *openapi3.T
	// Issuers are those whose tokens are taken; none: everybody may do everything.
	Issuers []platform.Issuer
	// Roles say what the callers with tokens may do.
	Roles []platform.RoleBinding
	// Adapters may report on every kind, beside those it requires; AnyAdapter: all.
	Adapters []string
	// Tenant says whose a resource is, and who sees it.
	Tenant platform.Tenant
	// StuckAfter is when a resource that is not reconciled counts as stuck. Default: 30m.
	StuckAfter time.Duration
	// Clock. Default: the real one.
	Clock clock.Clock
	// Log. Default: nothing is logged.
	Log *slog.Logger
	// Metrics is where metrics are registered. Default: nowhere.
	Metrics prometheus.Registerer
	// Calls count and time requests to the issuer of tokens. Default: nobody does.
	Calls *metrics.Calls
	// Stopping ends when the process is about to: who waits for changes is then answered at
	// once. Default: never.
	Stopping context.Context
}

// Server answers the fleet API below BasePath.
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
	routes   http.Handler
	// holders are those that leases were last given to, by the lease's name.
	holders *lru.Cache
}

var _ ServerInterface = (*Server)(nil)

// New makes the handler of the API. Its error names all that is wrong with the registered
// kinds.
func New(options Options) (http.Handler, error) {
	options.Clock = cmp.Or[clock.Clock](options.Clock, clock.RealClock{})
	options.Log = cmp.Or(options.Log, slog.New(slog.DiscardHandler))
	options.Stopping = cmp.Or(options.Stopping, context.Background())
	options.StuckAfter = cmp.Or(max(options.StuckAfter, 0), defaultStuckAfter)

	s := &Server{
		options: options, store: options.Store, clock: options.Clock, log: options.Log, holders: lru.New(maxHolders),
	}

	if err := s.load(); err != nil {
		return nil, err
	}

	var err error

	if s.contract, err = openapi3.NewLoader().LoadFromData(openapi.Document()); err != nil {
		return nil, fmt.Errorf("read the contract: %w", err)
	}

	if err := errors.Join(s.loadIssuers(), CheckTenant(options.Tenant, len(options.Issuers) > 0)); err != nil {
		return nil, err
	}

	if s.metrics, err = s.newMetrics(options.Metrics); err != nil {
		return nil, err
	}

	if err := s.route(); err != nil {
		return nil, err
	}

	return s, nil
}

// CheckEntities says what is wrong with registered kinds, their rules included.
func CheckEntities(entities []platform.Entity, schemas *openapi3.T) error {
	s := &Server{options: Options{Entities: entities, Schemas: schemas}, clock: clock.RealClock{}}

	return s.load()
}

// load makes the registry and compiles the rules of conditions.
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

// route registers the routes.
func (s *Server) route() error {
	routes := &mux{ServeMux: http.NewServeMux(), server: s}
	s.routes = HandlerWithOptions(s, StdHTTPServerOptions{
		BaseURL: BasePath, BaseRouter: routes,
		ErrorHandlerFunc: func(w http.ResponseWriter, r *http.Request, err error) { s.fail(w, r, malformed(err)) },
	})
	routes.refuseOthers()

	return errors.Join(routes.errs...)
}

// malformed is what the generated code could not read although it fits the contract, for
// example a number that is too large for its type.
func malformed(err error) error {
	return invalid(entity.FieldError{Field: "request", Message: err.Error()})
}
