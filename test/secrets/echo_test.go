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

// newEchoHandler returns a handler that responds with the status and an error in the format of both APIs. The
// error repeats the request's URL and credential.
func newEchoHandler(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		request := strings.Join(r.Header.Values("Authorization"), " ") + " " + r.URL.String()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{
			"message": "refused: " + request, "data": nil, "errors": map[string]string{"authorization": request},
		})
	}
}

// If a platform or a hypervisor repeats the operator's credentials in an error, the operator repeats them
// nowhere.
func TestErrorsThatRepeatSecrets(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	w.CreateCluster(w.NewCluster())

	var echoing []step.Object

	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusUnprocessableEntity, http.StatusInternalServerError} {
		for _, template := range w.newEchoingTemplates(status) {
			w.Create(template)

			echoing = append(echoing, template)
		}

		cluster := w.newEchoingCluster(status)
		w.CreateCluster(cluster)

		echoing = append(echoing, cluster)
	}

	w.Start()
	w.EventuallyReady(w.NewCluster())

	for _, object := range echoing {
		w.EventuallyCondition(object, step.Ready, metav1.ConditionFalse, "")
	}

	w.stopAndReportFindings()
}

// newEchoingTemplates returns one template for each kind of credential. The platform responds to each request
// with the status.
func (w *fixture) newEchoingTemplates(status int) []*v1alpha1.HypervisorMachineTemplate {
	server := httptest.NewServer(newEchoHandler(status))
	w.T.Cleanup(server.Close)
	w.Runners.PlatformURLs = append(w.Runners.PlatformURLs, server.URL)

	token, app := w.NewTemplate(), w.NewTemplate()
	token.Name, app.Name = fmt.Sprintf("token-%d", status), fmt.Sprintf("app-%d", status)
	token.Spec.Bootstrap.Config.GitHub.APIURL = server.URL
	app.Spec.Bootstrap.Config.GitHub.APIURL = server.URL
	useApp(app)

	return []*v1alpha1.HypervisorMachineTemplate{token, app}
}

// newEchoingCluster returns a cluster whose hypervisor responds to each request with the status.
func (w *fixture) newEchoingCluster(status int) *v1alpha1.HypervisorCluster {
	server := httptest.NewTLSServer(newEchoHandler(status))
	w.T.Cleanup(server.Close)

	cluster := w.NewCluster()
	cluster.Name = fmt.Sprintf("%s-%d", w.Cluster, status)
	cluster.Spec.Endpoint = server.URL + "/api2/json"
	cluster.Spec.TLS = &v1alpha1.HypervisorTLS{CABundle: pem.EncodeToMemory(
		&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})}

	return cluster
}

// stopAndReportFindings waits for a retry, stops the operator, and reports every credential that was repeated.
func (w *fixture) stopAndReportFindings() {
	w.T.Helper()
	time.Sleep(500 * time.Millisecond)
	w.Stop()
	w.scanAll()

	for _, finding := range w.scanner.Findings() {
		w.T.Errorf("%s", finding)
	}
}
