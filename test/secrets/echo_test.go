// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package secrets_test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// echo answers with an error that repeats all that it was asked with, in the words of either
// API.
func echo(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		said := strings.Join(r.Header.Values("Authorization"), " ") + " " + r.URL.String()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{
			"message": "refused: " + said, "data": nil, "errors": map[string]string{"authorization": said},
		})
	}
}

// A platform or a hypervisor whose errors repeat what they were asked with makes nobody else
// repeat it.
func TestErrorsThatRepeatSecrets(t *testing.T) {
	t.Parallel()

	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusUnprocessableEntity, http.StatusInternalServerError} {
		t.Run(fmt.Sprintf("platform %d", status), func(t *testing.T) {
			t.Parallel()

			w := newWorld(t)
			server := httptest.NewServer(echo(status))
			t.Cleanup(server.Close)

			token, app := w.NewTemplate(), w.NewTemplate()
			token.Spec.Bootstrap.Config.GitHub.APIURL = server.URL
			app.Name = "app"
			app.Spec.Bootstrap.Config.GitHub.APIURL = server.URL
			useApp(app)
			w.CreateCluster(w.NewCluster())
			w.Create(token)
			w.Create(app)
			w.Start()
			w.EventuallyReady(w.NewCluster())
			w.EventuallyCondition(token, step.Ready, metav1.ConditionFalse, "")
			w.EventuallyCondition(app, step.Ready, metav1.ConditionFalse, "")
			w.repeats()
		})

		t.Run(fmt.Sprintf("hypervisor %d", status), func(t *testing.T) {
			t.Parallel()

			w := newWorld(t)
			server := httptest.NewTLSServer(echo(status))
			t.Cleanup(server.Close)

			cluster := w.NewCluster()
			cluster.Spec.Endpoint = server.URL + "/api2/json"
			cluster.Spec.TLS = &v1alpha1.HypervisorTLS{CABundle: pem.EncodeToMemory(
				&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})}
			w.CreateCluster(cluster)
			w.Start()
			w.EventuallyCondition(cluster, step.Ready, metav1.ConditionFalse, "")
			w.repeats()
		})
	}
}

// repeats says what was repeated, after another try.
func (w *world) repeats() {
	w.T.Helper()
	time.Sleep(500 * time.Millisecond)
	w.Stop()
	w.look()

	for _, finding := range w.scanner.Findings() {
		w.T.Errorf("%s", finding)
	}
}
