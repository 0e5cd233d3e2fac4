// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

const (
	operatorUID   = "op-1"
	operatorSpace = "default"
)

var (
	env *kube.Env
	// hooks stand between the operator and the DNS server of one test, by its address.
	hooks sync.Map
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	code := kube.Run(m, func(e *kube.Env) {
		env = e

		go func() { ended <- operate(ctx, e) }()
	}, kube.WithCRDs("../../deploy/crds"), kube.WithScheme(v1alpha1.AddToScheme))

	cancel()

	if err := <-ended; err != nil {
		fmt.Fprintln(os.Stderr, err)

		code = 1
	}

	os.Exit(code)
}

// operate runs the controllers as the operator does, with short intervals.
func operate(ctx context.Context, e *kube.Env) error {
	mgr, err := ctrl.NewManager(e.Config, ctrl.Options{Scheme: e.Scheme, Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		return err
	}

	err = SetupWithManager(ctx, mgr, Options{
		Secret: readSecret(mgr.GetAPIReader()), OperatorUID: operatorUID,
		Factories: map[string]Factory{"rfc2136": hooked}, Log: slog.New(slog.DiscardHandler),
		Interval: time.Second, SweepInterval: time.Second, StalledInterval: 200 * time.Millisecond,
	})
	if err != nil {
		return err
	}

	return mgr.Start(ctx)
}

func readSecret(reader client.Reader) ReadSecret {
	return func(ctx context.Context, sel v1alpha1.SecretKeySelector) (string, error) {
		var secret corev1.Secret
		err := reader.Get(ctx, client.ObjectKey{Namespace: operatorSpace, Name: sel.Name}, &secret)

		return string(secret.Data[sel.Key]), err
	}
}

// hooked is the real service with a test's hook before it.
func hooked(settings Settings) (Service, error) {
	service, err := newRFC2136(settings)
	if err != nil {
		return nil, err
	}

	if hook, ok := hooks.Load(settings.Provider.Server); ok {
		return hook.(func(Service) Service)(service), nil
	}

	return service, nil
}
