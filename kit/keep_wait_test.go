// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kit_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/keep"
)

// silentClient is the client of an API server that does not respond.
type silentClient struct{ client.Client }

func (silentClient) Get(ctx context.Context, _ client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	<-ctx.Done()

	return ctx.Err()
}

// While the API server does not respond to the call for one object, the calls for others end with their own contexts.
func TestKeeperWaitsNoLongerThanItsContext(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		keeper := &keep.Keeper{Client: silentClient{}, APIReader: silentClient{}, Area: "test"}
		started := time.Now()

		call := func(name string, timeout time.Duration) chan error {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			out := make(chan error, 1)

			go func() {
				defer cancel()

				object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
				out <- keeper.Keep(ctx, object, types.NamespacedName{Namespace: "a", Name: "s"})
			}()

			return out
		}

		first := call("first", time.Hour)

		synctest.Wait()

		if err := <-call("second", time.Minute); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the second call ended with %v", err)
		}

		if took := time.Since(started); took != time.Minute {
			t.Errorf("the second call took %s", took)
		}

		<-first
	})
}
