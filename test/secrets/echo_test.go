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

// Platforms and hypervisors whose errors repeat what they were asked with make nobody else
// repeat it.
func TestErrorsThatRepeatSecrets(t *testing.T) {
	t.Parallel()

	w := newWorld(t)
	w.CreateCluster(w.NewCluster())

	var echoing []step.Object

	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusUnprocessableEntity, http.StatusInternalServerError} {
		for _, template := range w.echoingTemplates(status) {
			w.Create(template)

			echoing = append(echoing, template)
		}

		cluster := w.echoingCluster(status)
		w.CreateCluster(cluster)

		echoing = append(echoing, cluster)
	}

	w.Start()
	w.EventuallyReady(w.NewCluster())

	for _, object := range echoing {
		w.EventuallyCondition(object, step.Ready, metav1.ConditionFalse, "")
	}

	w.repeats()
}

// echoingTemplates are those of a platform that answers with the status, by either credential.
func (w *world) echoingTemplates(status int) []*v1alpha1.HypervisorMachineTemplate {
	server := httptest.NewServer(echo(status))
	w.T.Cleanup(server.Close)
	w.Runners.PlatformURLs = append(w.Runners.PlatformURLs, server.URL)

	token, app := w.NewTemplate(), w.NewTemplate()
	token.Name, app.Name = fmt.Sprintf("token-%d", status), fmt.Sprintf("app-%d", status)
	token.Spec.Bootstrap.Config.GitHub.APIURL = server.URL
	app.Spec.Bootstrap.Config.GitHub.APIURL = server.URL
	useApp(app)

	return []*v1alpha1.HypervisorMachineTemplate{token, app}
}

// echoingCluster is that of a hypervisor that answers with the status.
func (w *world) echoingCluster(status int) *v1alpha1.HypervisorCluster {
	server := httptest.NewTLSServer(echo(status))
	w.T.Cleanup(server.Close)

	cluster := w.NewCluster()
	cluster.Name = fmt.Sprintf("%s-%d", w.Cluster, status)
	cluster.Spec.Endpoint = server.URL + "/api2/json"
	cluster.Spec.TLS = &v1alpha1.HypervisorTLS{CABundle: pem.EncodeToMemory(
		&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})}

	return cluster
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
