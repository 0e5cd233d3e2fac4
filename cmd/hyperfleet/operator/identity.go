// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
)

const (
	reportKeySecret = "hyperfleet-report-key" //nolint:gosec // the name of a Secret
	reportKeyField  = "key"
	reportKeyBytes  = 32
)

var (
	errNotSynced = errors.New("the caches are not filled yet")
	errShortKey  = errors.New("it has fewer than 32 bytes: delete the secret, a new one is made at the next start")
)

//+kubebuilder:rbac:groups="",resources=namespaces,resourceNames=hyperfleet-system,verbs=get
//+kubebuilder:rbac:groups="",namespace=hyperfleet-system,resources=secrets,verbs=get;create
//+kubebuilder:rbac:groups="",namespace=hyperfleet-system,resources=events,verbs=create;patch
//+kubebuilder:rbac:groups=coordination.k8s.io,namespace=hyperfleet-system,resources=leases,verbs=get;create;update;patch

// identity is what must be the same after a restart.
type identity struct {
	// uid marks the operator's machines and runners.
	uid string
	// reportKey signs the machines' tokens.
	reportKey []byte
}

func identify(ctx context.Context, reader client.Reader, writer client.Writer, cfg config.OperatorConfig) (identity, error) {
	uid := cfg.OperatorUID
	if uid == "" {
		var namespace corev1.Namespace
		if err := reader.Get(ctx, client.ObjectKey{Name: cfg.Namespace}, &namespace); err != nil {
			return identity{}, fmt.Errorf("read own namespace %s: set operatorUID, or let the operator get the namespace: %w",
				cfg.Namespace, err)
		}

		uid = string(namespace.UID)
	}

	key, err := reportKey(ctx, reader, writer, cfg.Namespace)
	if err != nil {
		return identity{}, fmt.Errorf("read secret %s/%s: %w", cfg.Namespace, reportKeySecret, err)
	}

	return identity{uid: uid, reportKey: key}, nil
}

// reportKey reads the key, or makes it at the first start of the first replica.
func reportKey(ctx context.Context, reader client.Reader, writer client.Writer, namespace string) ([]byte, error) {
	name := client.ObjectKey{Namespace: namespace, Name: reportKeySecret}

	var secret corev1.Secret

	err := reader.Get(ctx, name, &secret)
	if apierrors.IsNotFound(err) {
		secret = corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name},
			Data:       map[string][]byte{reportKeyField: make([]byte, reportKeyBytes)},
		}
		_, _ = rand.Read(secret.Data[reportKeyField]) // never fails (crypto/rand)

		err = writer.Create(ctx, &secret)
		if apierrors.IsAlreadyExists(err) {
			err = reader.Get(ctx, name, &secret)
		}
	}

	if err != nil {
		return nil, err //nolint:wrapcheck // the caller names the secret
	}

	if len(secret.Data[reportKeyField]) < reportKeyBytes {
		return nil, errShortKey
	}

	return secret.Data[reportKeyField], nil
}
