// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/crds"
	"github.com/hyperfleet/hyperfleet/kit/watch"
)

const (
	// maxListedFields is how many missing fields of a CRD are named.
	maxListedFields = 5
	// crdInterval is the time between two checks of the CRDs of an area that waits for them.
	crdInterval = 2 * time.Second
	// schemaLag is how long the API server takes to serve the schema of a new CRD, and schemaPoll the time between two
	// checks in this time.
	schemaLag  = 3 * time.Second
	schemaPoll = 100 * time.Millisecond
	// schemaTimeout is the timeout of one call that reads schemas.
	schemaTimeout = 10 * time.Second
)

// schemaReader compares the CRDs that are built into the program with the schemas that the API server serves. Every
// account may read these schemas.
type schemaReader struct {
	api  openapi.Client
	crds []*apiextensionsv1.CustomResourceDefinition
}

// newSchemaReader returns a reader of the API server's schemas.
func newSchemaReader(kube *rest.Config) (*schemaReader, error) {
	limited := rest.CopyConfig(kube)
	limited.Timeout = schemaTimeout // the calls take no context

	api, err := discovery.NewDiscoveryClientForConfig(limited)
	if err != nil {
		return nil, fmt.Errorf("create discovery client: %w", err)
	}

	all, err := crds.Load()
	if err != nil {
		return nil, err
	}

	return &schemaReader{api: api.OpenAPIV3(), crds: all}, nil
}

// areaStarter starts areas whose CRDs have all fields that this version of the operator writes. The API server
// drops other fields without an error.
type areaStarter struct {
	*schemaReader

	mgr ctrl.Manager
	log *slog.Logger
	// waiting is 1 for an area that waits for its CRDs.
	waiting *prometheus.GaugeVec
}

// startAreas starts the enabled areas with their setup functions.
func startAreas(
	ctx context.Context, mgr ctrl.Manager, enabled []string,
	setups map[string]func(context.Context, ctrl.Manager) error, logger *slog.Logger,
) error {
	starter, err := newAreaStarter(mgr, ctrlmetrics.Registry, logger)
	if err != nil {
		return err
	}

	for _, area := range config.Areas() {
		if !slices.Contains(enabled, area) {
			continue
		}

		if err := starter.start(ctx, area, setups[area]); err != nil {
			return err
		}
	}

	return nil
}

// newAreaStarter returns a starter that reads schemas with the manager's client configuration.
func newAreaStarter(mgr ctrl.Manager, registry prometheus.Registerer, logger *slog.Logger) (*areaStarter, error) {
	reader, err := newSchemaReader(mgr.GetConfig())
	if err != nil {
		return nil, err
	}

	waiting := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "hyperfleet_area_waits_for_crds",
		Help: "1 if the controllers of an area are off because CRDs are missing or older than the operator, else 0.",
	}, []string{"area"})
	if err := registry.Register(waiting); err != nil {
		return nil, fmt.Errorf("register metrics of areas: %w", err)
	}

	return &areaStarter{schemaReader: reader, mgr: mgr, log: logger, waiting: waiting}, nil
}

// start calls setup if the API server serves the area's CRDs with all fields of this version. Otherwise it adds a waiter
// that calls setup when they are applied. Until then, the process is not ready, and other areas run.
func (s *areaStarter) start(
	ctx context.Context, area string, setup func(context.Context, ctrl.Manager) error,
) error {
	missing, err := s.waitForCRDs(ctx, area)
	if apierrors.IsForbidden(err) {
		s.log.WarnContext(ctx, "the CRDs are not compared with those of this version, because the operator may not read schemas: "+
			"bind the ClusterRole system:discovery to its service account", "area", area, "error", err)

		return setup(ctx, s.mgr)
	}

	if err != nil {
		return err
	}

	s.waiting.WithLabelValues(area).Set(0)

	if len(missing) == 0 {
		return setup(ctx, s.mgr)
	}

	s.waiting.WithLabelValues(area).Set(1)

	waiter := &watch.KindWaiter{
		Area: area, Manager: s.mgr, Interval: crdInterval, Clock: clock.RealClock{}, Log: s.log,
		FindMissing: func(context.Context) ([]string, error) { return s.findMissing(area) },
		SetupWithManager: func(ctx context.Context, mgr ctrl.Manager) error {
			s.waiting.WithLabelValues(area).Set(0)

			return setup(ctx, mgr)
		},
	}
	if err := s.mgr.Add(waiter); err != nil {
		return fmt.Errorf("add waiter for the CRDs of area %s: %w", area, err)
	}

	if err := s.mgr.AddReadyzCheck(area, waiter.CheckReady); err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}

	return nil
}

// waitForCRDs returns what findMissing returns. It waits a short time, because the API server updates its schemas with a
// delay after CRDs were applied.
func (s *areaStarter) waitForCRDs(ctx context.Context, area string) ([]string, error) {
	var (
		missing []string
		readErr error
	)

	_ = wait.PollUntilContextTimeout(ctx, schemaPoll, schemaLag, true, func(context.Context) (done bool, err error) {
		missing, readErr = s.findMissing(area)

		return readErr == nil && len(missing) == 0 || apierrors.IsForbidden(readErr), nil
	})

	return missing, errors.Join(ctx.Err(), readErr)
}

// needsCRD reports whether the controllers of an area read or write objects of the CRD.
func needsCRD(area string, crd *apiextensionsv1.CustomResourceDefinition) bool {
	isShared := slices.Contains([]string{"machineclaims", "hypervisormachinetemplates"}, crd.Spec.Names.Plural)

	return crds.AreaOf(crd) == area || area == config.AreaNetworking && isShared
}

// findMissing returns a sentence for each CRD of the area that is not installed or lacks fields. The last one also says
// how to install the CRDs.
func (s *schemaReader) findMissing(area string) ([]string, error) {
	paths, err := s.api.Paths()
	if err != nil {
		return nil, fmt.Errorf("read the schemas of the API server: %w", err)
	}

	var missing []string

	served := map[schema.GroupVersion]map[string]*apiextensionsv1.JSONSchemaProps{}

	for _, crd := range s.crds {
		if !needsCRD(area, crd) {
			continue
		}

		version := crd.Spec.Versions[0]
		group := schema.GroupVersion{Group: crd.Spec.Group, Version: version.Name}

		if served[group] == nil {
			if served[group], err = readSchemas(paths["apis/"+group.String()], group); err != nil {
				return nil, err
			}
		}

		kind := crd.Spec.Names.Kind

		actual := served[group][kind]
		if actual == nil {
			missing = append(missing, fmt.Sprintf("CRD %s is not installed", crd.Name))

			continue
		}

		if fields := crds.FindMissingFields(version.Schema.OpenAPIV3Schema, actual); len(fields) > 0 {
			if more := len(fields) - maxListedFields; more > 0 {
				fields = append(fields[:maxListedFields], fmt.Sprintf("%d more", more))
			}

			missing = append(missing, fmt.Sprintf("CRD %s is older than the operator and lacks %s", crd.Name, strings.Join(fields, ", ")))
		}
	}

	if len(missing) > 0 {
		missing[len(missing)-1] += ": " + crds.Fix
	}

	return missing, nil
}

// readSchemas returns the schemas of the kinds of a group. It returns an empty map if the API server does not serve the
// group.
func readSchemas(document openapi.GroupVersion, group schema.GroupVersion) (map[string]*apiextensionsv1.JSONSchemaProps, error) {
	out := map[string]*apiextensionsv1.JSONSchemaProps{}
	if document == nil {
		return out, nil
	}

	text, err := document.Schema("application/json")
	if err != nil {
		return nil, fmt.Errorf("read the schemas of %s: %w", group, err)
	}

	var parsed struct {
		Components struct {
			Schemas map[string]json.RawMessage `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(text, &parsed); err != nil {
		return nil, fmt.Errorf("parse the schemas of %s: %w", group, err)
	}

	for name, raw := range parsed.Components.Schemas {
		var named struct {
			Kinds []metav1.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
		}
		if err := json.Unmarshal(raw, &named); err != nil {
			return nil, fmt.Errorf("parse schema %s: %w", name, err)
		}

		if len(named.Kinds) != 1 || named.Kinds[0].Group != group.Group || strings.HasSuffix(named.Kinds[0].Kind, "List") {
			continue
		}

		props := &apiextensionsv1.JSONSchemaProps{}
		if err := json.Unmarshal(raw, props); err != nil {
			return nil, fmt.Errorf("parse schema %s: %w", name, err)
		}

		out[named.Kinds[0].Kind] = props
	}

	return out, nil
}
