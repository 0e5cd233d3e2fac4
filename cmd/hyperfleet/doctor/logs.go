// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"time"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/logstore"
	"github.com/hyperfleet/hyperfleet/runners/objectstore"
)

const (
	// storeTimeout limits the time that the three calls to the log store may take together.
	storeTimeout = 15 * time.Second
	// runnersConfigMap is the ConfigMap of the runners area, and configFile is the key of the configuration
	// in it.
	runnersConfigMap, configFile = "hyperfleet-runners", "operator.yaml"
	storeSubject                 = "log store"
)

// checkLogStore tests the store that the operator's configuration names for runner logs, with the operator's
// keys. It reports nothing if the ConfigMap does not exist or logs are not kept in a store.
func (d *doctor) checkLogStore(ctx context.Context) {
	var settings corev1.ConfigMap

	err := d.client.Get(ctx, client.ObjectKey{Namespace: d.operatorNamespace, Name: runnersConfigMap}, &settings)

	switch {
	case apierrors.IsNotFound(err):
		return
	case err != nil:
		d.reportUnreadable(storeSubject, err)

		return
	}

	// Only this part is parsed. The operator, which may have another version, validates the whole
	// configuration.
	var parsed struct {
		Runners struct {
			Logs config.RunnerLogs `yaml:"logs"`
		} `yaml:"runners"`
	}

	if err := yaml.Unmarshal([]byte(settings.Data[configFile]), &parsed); err != nil {
		d.report.addf(Problem, storeSubject, "parse %s of ConfigMap %s/%s: %v", configFile, d.operatorNamespace, runnersConfigMap, err)

		return
	}

	if parsed.Runners.Logs.KeepIn == config.LogsInStore {
		d.testLogStore(ctx, parsed.Runners.Logs.Store)
	}
}

// testLogStore writes, reads and deletes a small object in the store, and reports the result. Only a failed
// write is a problem, because the operator neither reads nor deletes logs in the store. An unreachable store
// is only a warning, because the operator may reach it from its network. If the store needs a CA file,
// nothing is tested, because the file is on the operator's file system.
func (d *doctor) testLogStore(ctx context.Context, store config.LogStore) {
	if store.CAFile != "" {
		d.report.addf(Warning, storeSubject, "not tested: the CA file %s of the store at %s is on the operator's file system",
			store.CAFile, store.Endpoint)

		return
	}

	ctx, stop := context.WithTimeout(ctx, storeTimeout)
	defer stop()

	result, err := (&logstore.Store{
		Config: store, Transport: bounds.SharedTransport(),
		Secrets: &connect.Secrets{Reader: d.client, OperatorNamespace: d.operatorNamespace},
	}).Check(ctx)

	var storeErr *objectstore.Error

	switch {
	case errclass.ReasonOf(err, "") == credential.ReasonSecretForbidden:
		d.report.addf(Warning, storeSubject, "not tested: no permission to read Secret %s/%s with the keys of the store",
			d.operatorNamespace, store.Secret)
	case errors.As(err, &storeErr) && storeErr.Code == "":
		d.report.addf(Warning, storeSubject, "not reachable from here: %v: if the operator cannot reach the store either, "+
			"logs stay in the cluster", err)
	case err != nil:
		d.report.addf(Problem, storeSubject, "cannot write logs: %v", err)
	case result.DeleteError != nil:
		d.report.addf(OK, storeSubject, "logs can be written; test object %s remains in the store, "+
			"because the operator's keys cannot delete objects and do not have to: %v", result.URL, result.DeleteError)
	case result.ReadError != nil:
		d.report.addf(OK, storeSubject, "logs can be written; the operator's keys cannot read objects and do not have to: %v",
			result.ReadError)
	default:
		d.report.addf(OK, storeSubject, "%s was written, read and deleted", result.URL)
	}
}
