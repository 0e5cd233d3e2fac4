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
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/kit/objectstore"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/logstore"
)

const (
	// storeTimeout bounds the three calls of the store.
	storeTimeout = 15 * time.Second
	// configured is the ConfigMap of the area runners, and its file.
	configured, configuredIn = "hyperfleet-runners", "operator.yaml"
	storeSubject             = "store of runners' logs"
)

// logs tries the store that the operator's configuration names for logs of runners, with the
// operator's keys.
func (d *doctor) logs(ctx context.Context) {
	var settings corev1.ConfigMap

	err := d.client.Get(ctx, client.ObjectKey{Namespace: d.operator, Name: configured}, &settings)

	switch {
	case apierrors.IsNotFound(err):
		return
	case err != nil:
		d.unseen(storeSubject, err)

		return
	}

	// The rest is the operator's to check, which may be of another version.
	var of struct {
		Runners struct {
			Logs config.RunnerLogs `yaml:"logs"`
		} `yaml:"runners"`
	}

	if err := yaml.Unmarshal([]byte(settings.Data[configuredIn]), &of); err != nil {
		d.report.addf(Problem, storeSubject, "%s of ConfigMap %s/%s can't be read: %v", configuredIn, d.operator, configured, err)

		return
	}

	if of.Runners.Logs.KeepIn == config.LogsInStore {
		d.tryStore(ctx, of.Runners.Logs.Store)
	}
}

func (d *doctor) tryStore(ctx context.Context, store config.LogStore) {
	if store.CAFile != "" {
		d.report.addf(Warning, storeSubject, "not tried: %s, by which the store at %s is verified, is a file of the operator's",
			store.CAFile, store.Endpoint)

		return
	}

	ctx, stop := context.WithTimeout(ctx, storeTimeout)
	defer stop()

	trial, err := (&logstore.Store{
		Config: store, Transport: httpbound.Shared(), Secrets: &connect.Secrets{Reader: d.client, OperatorNamespace: d.operator},
	}).Try(ctx)

	var refused *objectstore.Error

	switch {
	case errclass.Reason(err, "") == credential.ReasonSecretForbidden:
		d.report.addf(Warning, storeSubject, "not tried: you may not read Secret %s/%s, which has its keys", d.operator, store.Secret)
	case errors.As(err, &refused) && refused.Code == "":
		d.report.addf(Warning, storeSubject, "it does not answer here: %v: the operator may reach it all the same; "+
			"if not, logs stay in the cluster", err)
	case err != nil:
		d.report.addf(Problem, storeSubject, "it takes no logs: %v", err)
	case trial.Undeleted != nil:
		d.report.addf(Fine, storeSubject, "it takes logs; %s is left there, for the operator's keys need not delete: %v",
			trial.At, trial.Undeleted)
	case trial.Unread != nil:
		d.report.addf(Fine, storeSubject, "it takes logs; the operator's keys need not read: %v", trial.Unread)
	default:
		d.report.addf(Fine, storeSubject, "%s was written, read and deleted", trial.At)
	}
}
