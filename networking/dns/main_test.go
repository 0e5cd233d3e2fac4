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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

const (
	operatorUID       = "op-1"
	operatorNamespace = "hyperfleet-system"
)

var (
	env     *kube.Env
	started sync.Once
	stop    = func() {}
	done    = newClosedChannel()
)

// newClosedChannel returns a channel for a server that was not started.
func newClosedChannel() chan error {
	never := make(chan error)
	close(never)

	return never
}

func TestMain(m *testing.M) {
	code := kube.Run(m, &env, kube.ForArea("networking"))

	stop()

	if err := <-done; err != nil {
		fmt.Fprintln(os.Stderr, err)

		code = 1
	}

	os.Exit(code)
}

// runControllers runs the controllers once for all tests, with the permissions of the operator and with short
// intervals.
func runControllers(t *testing.T) {
	t.Helper()
	started.Do(func() {
		env.Apply(t, "../../deploy/base/namespace.yaml", "../../deploy/rbac/networking.yaml", "../../deploy/base/networking.yaml")

		mgr, err := ctrl.NewManager(env.RecordUses("hyperfleet-networking", env.ServiceAccount(t, operatorNamespace, "hyperfleet-networking")),
			ctrl.Options{Scheme: env.Scheme, Metrics: metricsserver.Options{BindAddress: "0"}})
		if err != nil {
			t.Fatal(err)
		}

		ctx, cancel := context.WithCancel(context.Background())
		stop, done = cancel, make(chan error, 1)

		err = SetupWithManager(ctx, mgr, Options{
			Secret: newSecretReader(mgr.GetAPIReader()), OperatorUID: operatorUID,
			Factories: Factories(), Log: slog.New(slog.DiscardHandler),
			Interval: time.Second, SweepInterval: time.Second, StalledInterval: 200 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}

		go func() { done <- mgr.Start(ctx) }()
	})
}

func newSecretReader(reader client.Reader) SecretReader {
	return func(ctx context.Context, sel v1alpha1.SecretKeySelector, to credential.Destination) (string, error) {
		secret, err := credential.ReadSecret(ctx, reader, client.ObjectKey{Namespace: operatorNamespace, Name: sel.Name}, sel.Key,
			func(secret *corev1.Secret) error { return credential.CheckDestination(secret, to, nil) })
		if err != nil {
			return "", err
		}

		return string(secret.Data[sel.Key]), nil
	}
}

// The operator's service account can read only the Secrets that the guide names.
func TestSecretsOfTheGuide(t *testing.T) {
	t.Parallel()
	runControllers(t)

	as, err := client.New(env.RecordUses("hyperfleet-networking", env.ServiceAccount(t, operatorNamespace, "hyperfleet-networking")),
		client.Options{Scheme: env.Scheme})
	if err != nil {
		t.Fatal(err)
	}

	for _, name := range []string{"dns-credentials", "dns-tsig"} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: operatorNamespace, Name: name}, StringData: map[string]string{"key": "value"}}
		if err := env.Client.Create(t.Context(), secret); err != nil {
			t.Fatal(err)
		}

		got, err := newSecretReader(as)(t.Context(), v1alpha1.SecretKeySelector{Name: name, Key: "key"}, credential.Destination{})
		if err != nil || got != "value" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
