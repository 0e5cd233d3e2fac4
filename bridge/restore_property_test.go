// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/kit/property"
)

// Whatever is restored without its status, in whatever order: the bridge has the HostedCluster and the encryption key
// that it had.
func TestPropertyBridgeRestores(t *testing.T) { //nolint:paralleltest // it stops and starts the area
	w := newRestoreFixture(t)
	count := 0

	property.Check(t, "no hosted cluster is lost or made again", property.Options{Runs: 10, Brief: 1}, prop.ForAllNoShrink(func(seed uint64) string {
		count++

		return w.runRestores(fmt.Sprintf("b%d", count), rand.New(rand.NewPCG(seed, 0)))
	}, gen.UInt64()))
}

// runRestores restores a new bridge at random, and returns what is wrong after that.
func (w *restoreFixture) runRestores(name string, random *rand.Rand) string {
	const starts = 3

	w.createDPUCluster(name, hypershift.PhaseReady)

	b := w.newBridge(name)
	w.create(b)
	w.waitForPhase(b, v1alpha1.PhaseReady)

	uid, key := w.clusterOf(name)
	var history []string

	for range starts {
		w.stop()

		for range 1 + random.IntN(2) {
			isInPlace := random.IntN(2) == 0
			history = append(history, fmt.Sprintf("restore in place %t", isInPlace))

			if !isInPlace {
				w.orphan()
			}

			w.restoreBridge(b, isInPlace)
		}

		w.start()

		history = append(history, "start")

		w.waitForPhase(b, v1alpha1.PhaseReady)

		if after, afterKey := w.clusterOf(name); after != uid || !bytes.Equal(key, afterKey) {
			return fmt.Sprint("the HostedCluster or its key is another one after ", history)
		}
	}

	w.must(env.Client.Delete(w.t.Context(), w.getBridge(b)))
	w.eventually("the bridge is gone", func() bool {
		return apierrors.IsNotFound(env.Client.Get(w.t.Context(), client.ObjectKeyFromObject(b), &v1alpha1.DPFHCPBridge{}))
	})

	return ""
}

// clusterOf returns the UID of a bridge's HostedCluster, and its encryption key.
func (w *restoreFixture) clusterOf(name string) (types.UID, []byte) {
	w.t.Helper()

	var secret corev1.Secret

	key := client.ObjectKey{Namespace: w.namespace, Name: hypershift.EncryptionKeySecretName(name)}
	w.must(env.Client.Get(w.t.Context(), key, &secret))
	cluster := w.readObject(hypershift.NewObject(hypershift.HostedClusterKind()), w.namespace, name)

	return cluster.GetUID(), secret.Data[hypershift.EncryptionKeyKey]
}
