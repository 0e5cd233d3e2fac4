// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-tpm/tpm2"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/devid"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/test/timing"
	"github.com/hyperfleet/hyperfleet/test/tpm"
)

// devIDFixture is a fixture with a namespace, an operator and a CA that makes TPMs.
type devIDFixture struct {
	t            *testing.T
	namespace    string
	tpms         *tpm.Authority
	devices      config.DevID
	recorder     *events.FakeRecorder
	cachedClient client.Client
	operator     *httptest.Server
}

func newDevIDFixture(t *testing.T) *devIDFixture {
	t.Helper()

	w := &devIDFixture{
		t: t, namespace: env.Namespace(t), tpms: tpm.NewAuthority(t), devices: tpm.NewDevID(t),
		recorder: events.NewFakeRecorder(1000), cachedClient: startCachedClient(t),
	}
	w.operator = w.startOperator(w.devices)

	return w
}

// startOperator starts a replica. Its only state is in the API server.
func (w *devIDFixture) startOperator(devices config.DevID) *httptest.Server {
	w.t.Helper()

	metrics, err := devid.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		w.t.Fatal(err)
	}

	mux := http.NewServeMux()
	mux.Handle(devid.Pattern, &devid.Handler{
		Client: w.cachedClient, Live: env.Client, Recorder: w.recorder, Key: key, Authority: devices,
		Metrics: metrics, Clock: clock.RealClock{},
	})

	server := httptest.NewServer(mux)
	w.t.Cleanup(server.Close)

	return server
}

// startCachedClient returns a client that reads from a cache, as the client of the manager does.
func startCachedClient(t *testing.T) client.Client {
	t.Helper()

	ctx, cancel := context.WithCancel(context.Background())

	informers, err := cache.New(env.Config, cache.Options{Scheme: env.Scheme})
	if err != nil {
		t.Fatal(err)
	}

	if err := informers.IndexField(ctx, &v1alpha1.MachineClaim{}, devid.IndexEK, devid.ExtractEK); err != nil {
		t.Fatal(err)
	}

	done := make(chan struct{})

	go func() {
		defer close(done)

		_ = informers.Start(ctx)
	}()

	t.Cleanup(func() { cancel(); <-done })

	if !informers.WaitForCacheSync(t.Context()) {
		t.Fatal("the cache did not sync")
	}

	out, err := client.New(env.Config, client.Options{Scheme: env.Scheme, Cache: &client.CacheOptions{Reader: informers}})
	if err != nil {
		t.Fatal(err)
	}

	return out
}

// createClaim creates a claim whose machine attests with its TPM, after the case has changed the claim.
func (w *devIDFixture) createClaim(name string, change func(*v1alpha1.MachineClaim)) *v1alpha1.MachineClaim {
	w.t.Helper()

	out := newClaim(w.namespace, name)
	out.Spec.Lifecycle = &v1alpha1.Lifecycle{MaxLifetime: &metav1.Duration{Duration: 3 * time.Hour}}
	out.Status.BootstrapInfo = &v1alpha1.BootstrapInfo{Identity: &v1alpha1.MachineIdentity{
		SPIFFEID: "spiffe://hyperfleet.io/" + name, Method: v1alpha1.AttestationTPM,
	}}

	if change != nil {
		change(out)
	}

	return createClaim(w.t, out)
}

func newDevIDBearer(claim *v1alpha1.MachineClaim) string {
	return "Bearer " + vmspec.DevIDCode(key, claim.Namespace, claim.Name, claim.UID)
}

// requestCertificate sends the request of the claim's machine. The body is a text, or a value that is encoded
// as JSON.
func requestCertificate(t *testing.T, operator *httptest.Server, claim *v1alpha1.MachineClaim, bearer string, body any) operatorResponse {
	t.Helper()

	data, ok := body.(string)
	if !ok {
		written, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}

		data = string(written)
	}

	return sendRequest(t, operator, vmspec.DevIDPath(claim), bearer, data)
}

// parseCertificate parses the certificate of a response.
func parseCertificate(t *testing.T, got operatorResponse) *x509.Certificate {
	t.Helper()

	var given guest.DevIDCertificate
	if err := json.Unmarshal([]byte(got.body), &given); err != nil {
		t.Fatal(err)
	}

	block, _ := pem.Decode([]byte(given.Chain))
	if block == nil {
		t.Fatalf("chain %q", given.Chain)
	}

	out, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}

	return out
}

func TestOneDeviceIdentity(t *testing.T) {
	t.Parallel()

	w := newDevIDFixture(t)
	claim := w.createClaim("linux-1", nil)
	device := w.tpms.NewTPM(t)
	mine := tpm.NewRequest(t, device)

	// A CA that cannot be loaded now may be loaded later, so the refusal is transient.
	for name, devices := range map[string]config.DevID{
		"none": {}, "not there": {CertFile: w.devices.CertFile + "x", KeyFile: w.devices.KeyFile},
	} {
		got := requestCertificate(t, w.startOperator(devices), claim, newDevIDBearer(claim), mine)
		if got.status != http.StatusServiceUnavailable || got.retryAfter == "" || got.refusal.Reason != "" {
			t.Errorf("with an authority that is %s: %+v", name, got)
		}
	}

	got := requestCertificate(t, w.operator, claim, newDevIDBearer(claim), mine)
	if got.status != http.StatusOK {
		t.Fatalf("%+v", got)
	}

	certificate := parseCertificate(t, got)

	roots := x509.NewCertPool()
	if pool, err := os.ReadFile(w.devices.CertFile); err != nil || !roots.AppendCertsFromPEM(pool) {
		t.Fatalf("read authority: %v", err)
	}

	if _, err := certificate.Verify(x509.VerifyOptions{Roots: roots}); err != nil {
		t.Error(err)
	}

	if want := time.Now().Add(3 * time.Hour); certificate.Subject.CommonName != string(claim.UID) ||
		certificate.NotAfter.After(want) || certificate.NotAfter.Before(want.Add(-time.Minute)) {
		t.Errorf("certificate of %q until %s, want until %s", certificate.Subject.CommonName, certificate.NotAfter, want)
	}

	// If the response was lost, every replica returns the same certificate.
	if again := requestCertificate(t, w.startOperator(w.devices), claim, newDevIDBearer(claim), mine); again.body != got.body {
		t.Errorf("second request: %+v", again)
	}

	// A request with the code and another key is refused.
	if other := requestCertificate(t, w.operator, claim, newDevIDBearer(claim), tpm.NewRequest(t, device)); other.status != http.StatusConflict ||
		other.refusal.Reason != guest.ReasonAttestationRefused {
		t.Errorf("another key: %+v", other)
	}

	if status := getObject(t, w.namespace, claim.Name, &v1alpha1.MachineClaim{}).Status.BootstrapInfo.Identity.Device; status == nil || len(status.PublicKeySHA256) != 64 ||
		len(status.EKCertificateSHA256) != 64 || status.RequestedAt.IsZero() {
		t.Errorf("status %+v", status)
	}

	recorded, code := formatEvents(w.recorder), newDevIDBearer(claim)[len("Bearer "):]
	if strings.Count(recorded, devid.ReasonCertified) != 1 || strings.Count(recorded, devid.ReasonRefused) != 1 || strings.Contains(recorded, code) {
		t.Errorf("events:\n%s", recorded)
	}
}

func TestCertificateRefusals(t *testing.T) {
	w := newDevIDFixture(t)
	good, other := w.createClaim("good", nil), w.createClaim("other", nil)
	now := metav1.NowMicro()
	mine := tpm.NewRequest(t, w.tpms.NewTPM(t))
	earlier := good.DeepCopy()
	earlier.UID = "0c1d7a6e-0000-4000-8000-000000000000"

	importable, err := tpm2.Unmarshal[tpm2.TPM2BPublic](mine.Public)
	if err != nil {
		t.Fatal(err)
	}

	area, err := importable.Contents()
	if err != nil {
		t.Fatal(err)
	}

	area.ObjectAttributes.FixedTPM = false
	soft := guest.DevIDRequest{Public: tpm2.Marshal(tpm2.New2B(*area))}

	for name, tc := range map[string]struct {
		claim  *v1alpha1.MachineClaim
		bearer string // default: the code of the claim
		body   any    // default: a valid request
		want   int
	}{
		"without a code":              {claim: good, bearer: "Bearer ", want: http.StatusUnauthorized},
		"the code of another machine": {claim: good, bearer: newDevIDBearer(other), want: http.StatusUnauthorized},
		"the code for the credential": {
			claim: good, bearer: "Bearer " + vmspec.ClaimCode(key, good.Namespace, good.Name, good.UID), want: http.StatusUnauthorized,
		},
		"an earlier claim with the same name": {claim: earlier, want: http.StatusGone},
		"a stopped machine": {
			claim: w.createClaim("off", func(c *v1alpha1.MachineClaim) { c.Status.Times = &v1alpha1.MachineTimes{Stopped: &now} }), want: http.StatusGone,
		},
		"a machine that does not attest": {
			claim: w.createClaim("none", func(c *v1alpha1.MachineClaim) { c.Status.BootstrapInfo.Identity = nil }), want: http.StatusForbidden,
		},
		"a machine that attests by a token": {
			claim: w.createClaim("token", func(c *v1alpha1.MachineClaim) {
				c.Status.BootstrapInfo.Identity.Method = v1alpha1.AttestationJoinToken
			}), want: http.StatusForbidden,
		},
		// The claim was restored without its status, and the identity provider has said that the machine attested.
		"a machine that has attested with a key that is not recorded": {
			claim: w.createClaim("restored", func(c *v1alpha1.MachineClaim) { c.Status.BootstrapInfo.Identity.AttestedAt = &now }),
			want:  http.StatusConflict,
		},
		"no JSON":           {claim: w.createClaim("a", nil), body: "<html>", want: http.StatusBadRequest},
		"an unknown field":  {claim: w.createClaim("b", nil), body: `{"public":"AAAA","subject":"root"}`, want: http.StatusBadRequest},
		"two requests":      {claim: w.createClaim("c", nil), body: `{"public":"AAAA"}{}`, want: http.StatusBadRequest},
		"no key":            {claim: w.createClaim("d", nil), body: `{}`, want: http.StatusBadRequest},
		"no public area":    {claim: w.createClaim("e", nil), body: guest.DevIDRequest{Public: []byte("key")}, want: http.StatusBadRequest},
		"too much":          {claim: w.createClaim("f", nil), body: `{"public":"` + strings.Repeat("A", 64<<10) + `"}`, want: http.StatusBadRequest},
		"an exportable key": {claim: w.createClaim("g", nil), body: soft, want: http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.bearer == "" {
				tc.bearer = newDevIDBearer(tc.claim)
			}

			if tc.body == nil {
				tc.body = mine
			}

			got := requestCertificate(t, w.operator, tc.claim, tc.bearer, tc.body)
			if got.status != tc.want || got.refusal.Reason != guest.ReasonAttestationRefused || got.refusal.Message == "" || got.retryAfter != "" {
				t.Errorf("%+v, want %d", got, tc.want)
			}
		})
	}

	// None of the refused requests affects the machine's own request.
	if got := requestCertificate(t, w.operator, good, newDevIDBearer(good), mine); got.status != http.StatusOK {
		t.Errorf("own request: %+v", got)
	}
}

// If several keys arrive at the same time, at any replica, only one is certified.
func TestConcurrentKeys(t *testing.T) {
	t.Parallel()

	w := newDevIDFixture(t)
	claim := w.createClaim("linux-1", nil)
	replicas := []*httptest.Server{w.operator, w.startOperator(w.devices)}
	device := w.tpms.NewTPM(t)

	var requests []guest.DevIDRequest
	for range 4 {
		requests = append(requests, tpm.NewRequest(t, device))
	}

	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		count = map[int]int{}
	)

	for i := range requests {
		wg.Go(func() {
			got := requestCertificate(t, replicas[i%2], claim, newDevIDBearer(claim), requests[i])

			mu.Lock()
			defer mu.Unlock()

			count[got.status]++
		})
	}

	wg.Wait()

	if count[http.StatusOK] != 1 || count[http.StatusConflict] != 3 {
		t.Errorf("responses %v", count)
	}
}

// Two machines with the same TPM are refused, because each could impersonate the other.
func TestSharedTPM(t *testing.T) {
	t.Parallel()

	w := newDevIDFixture(t)
	first, second := w.createClaim("linux-1", nil), w.createClaim("linux-2", nil)
	device := w.tpms.NewTPM(t)

	if got := requestCertificate(t, w.operator, first, newDevIDBearer(first), tpm.NewRequest(t, device)); got.status != http.StatusOK {
		t.Fatalf("%+v", got)
	}

	clone := tpm.NewRequest(t, w.tpms.CopyTPM(t, device))

	// The cache shows the first claim with a delay.
	probes := 0

	timing.WaitUntil(t, "the copied TPM is detected", func() bool {
		probes++
		third := w.createClaim(fmt.Sprintf("probe-%d", probes), nil)

		return requestCertificate(t, w.operator, third, newDevIDBearer(third), clone).status == http.StatusConflict
	})

	if got := requestCertificate(t, w.operator, second, newDevIDBearer(second), clone); got.status != http.StatusConflict ||
		!strings.Contains(got.refusal.Message, "remove the TPM from the template") {
		t.Errorf("%+v", got)
	}

	if getObject(t, w.namespace, second.Name, &v1alpha1.MachineClaim{}).Status.BootstrapInfo.Identity.Device != nil {
		t.Error("a refused key is recorded")
	}
}

// A machine that sends too many requests must wait. Guessed codes do not use up the limit of other machines.
func TestCertificateRateLimits(t *testing.T) {
	t.Parallel()

	w := newDevIDFixture(t)
	claim, other := w.createClaim("linux-1", nil), w.createClaim("linux-2", nil)
	count := map[int]int{}

	for range 60 {
		count[requestCertificate(t, w.operator, claim, "Bearer wrong", "{}").status]++
	}

	if count[http.StatusTooManyRequests] == 0 || count[http.StatusUnauthorized] == 0 {
		t.Errorf("responses to guesses: %v", count)
	}

	count = map[int]int{}
	for range 8 {
		count[requestCertificate(t, w.operator, claim, newDevIDBearer(claim), "{}").status]++
	}

	if count[http.StatusTooManyRequests] == 0 || count[http.StatusBadRequest] == 0 {
		t.Errorf("responses to requests: %v", count)
	}

	if got := requestCertificate(t, w.operator, other, newDevIDBearer(other), "{}"); got.status != http.StatusBadRequest {
		t.Errorf("another machine: %+v", got)
	}
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"public":"AAAA","ek_certificate":"AAAA"}`))
	f.Add([]byte(`{"public":null}{}`))

	// Without claims and CA, every request is refused.
	operator := http.NewServeMux()
	operator.Handle(devid.Pattern, &devid.Handler{Key: key, Clock: clock.RealClock{}, Recorder: events.NewFakeRecorder(1)})

	f.Fuzz(func(t *testing.T, body []byte) {
		claim := &v1alpha1.MachineClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "c"}}
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, vmspec.DevIDPath(claim), bytes.NewReader(body))
		req.Header.Set("Authorization", newDevIDBearer(claim))

		got := httptest.NewRecorder()
		operator.ServeHTTP(got, req)

		switch got.Code {
		case http.StatusBadRequest, http.StatusServiceUnavailable, http.StatusTooManyRequests:
		default:
			t.Fatalf("%d %s", got.Code, got.Body)
		}
	})
}
