// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package devid

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/identity/devid"
	"github.com/hyperfleet/hyperfleet/runners/guestapi"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

const (
	// Pattern is the route that Handler serves.
	Pattern = "POST /machines/{namespace}/{name}/{uid}/devid"

	// maxBody limits the size of a request body, which holds a TPM public area and a certificate in base64.
	maxBody = 32 << 10
)

// Reasons of the events that the handler emits for a claim.
const (
	ReasonCertified = "DeviceIdentityCertified"
	ReasonRefused   = "DeviceIdentityRefused"
)

// Handler signs device identity certificates. It needs no leader election: every replica can serve requests.
//
// The request body is a guest.DevIDRequest. Status 200 returns a guest.DevIDCertificate. Every other status
// returns a guest.Refusal:
//
//   - 400: the key cannot be certified.
//   - 401: the code is wrong.
//   - 403: the machine does not attest with a TPM.
//   - 409: another key was certified for the machine, or another machine has the same TPM.
//   - 410: the claim is deleted, or its machine has stopped or ended.
//   - 429 and 503: the machine can retry after Retry-After.
type Handler struct {
	// Client writes the status of claims, and lists claims by IndexEK.
	Client client.Client
	// Live reads claims from the API server and bypasses the cache.
	Live     client.Reader
	Recorder events.EventRecorder
	// Key is the secret from which the codes of machines are derived.
	Key []byte
	// Authority configures the CA that signs certificates. It is empty if the operator has no such CA.
	Authority config.DevID
	Metrics   *Metrics
	Clock     clock.PassiveClock

	limits guestapi.Limits
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims,verbs=get;list;watch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims/status,verbs=patch

// ServeHTTP authenticates the machine, and signs the certificate of its key.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), guestapi.Timeout)
	defer cancel()

	caller := guestapi.ParseCaller(r)

	refusal := h.authenticate(ctx, r, caller)
	if refusal == nil {
		var chain string

		if chain, refusal = h.certify(ctx, w, r, caller); refusal == nil {
			guestapi.WriteJSON(w, http.StatusOK, guest.DevIDCertificate{Chain: chain})

			return
		}
	}

	h.Metrics.countRequest(refusal.Outcome)
	refusal.Respond(ctx, w, r, h.Recorder, guestapi.RefusalTexts{
		Reason: ReasonRefused, Action: "Certify", LogMessage: "device identity request refused",
	})
}

// authenticate checks the code of the request. It returns nil if the request carries the code of its claim
// and the machine has not exceeded its rate limit.
func (h *Handler) authenticate(ctx context.Context, r *http.Request, caller guestapi.Caller) *guestapi.Refusal {
	expected := vmspec.DevIDCode(h.Key, caller.Namespace, caller.Name, caller.UID)
	if len(h.Key) > 0 && guestapi.IsSameCode(guestapi.BearerToken(r), expected) {
		return h.limits.CheckRate(caller.UID, h.Clock.Now())
	}

	return h.limits.RefuseWrongProof(ctx, h.Client, caller, h.Clock.Now(), guestapi.NewTerminalRefusal(http.StatusUnauthorized,
		guestapi.OutcomeWrongCode, guest.ReasonAttestationRefused,
		"the device identity code does not belong to this machine"))
}

// certify records the key of the request in the claim's status, and signs a certificate for it. It returns
// the certificate chain in PEM.
func (h *Handler) certify(
	ctx context.Context, w http.ResponseWriter, r *http.Request, caller guestapi.Caller,
) (string, *guestapi.Refusal) {
	request, refusal := decodeRequest(w, r)
	if refusal != nil {
		return "", refusal
	}

	if _, err := devid.ParsePublic(request.Public); err != nil {
		return "", newInvalidRefusal(err.Error())
	}

	authority, refusal := h.loadAuthority(ctx)
	if refusal != nil {
		return "", refusal
	}

	claim, isFirst, refusal := h.recordKey(ctx, caller, request)
	if refusal != nil {
		return "", refusal
	}

	certificate, err := authority.Issue(devid.Request{
		Machine: vmspec.IdentityOf(claim), PublicArea: request.Public,
		RequestedAt: claim.Status.BootstrapInfo.Identity.Device.RequestedAt.Time, Lifetime: certificateLifetime(claim),
	})
	if err != nil {
		log.FromContext(ctx).Error(err, "sign device identity certificate", "namespace", caller.Namespace, "claim", caller.Name)

		return "", guestapi.NewTransientRefusal("the operator cannot sign the certificate at the moment: retry later")
	}

	h.reportCertificate(ctx, claim, certificate, isFirst)

	return encodeChain(certificate), nil
}

// reportCertificate logs and counts a signed certificate. It emits an event only for the first certificate
// of a claim.
func (h *Handler) reportCertificate(
	ctx context.Context, claim *v1alpha1.MachineClaim, certificate devid.Certificate, isFirst bool,
) {
	log.FromContext(ctx).Info("device identity certificate signed", "namespace", claim.Namespace, "claim", claim.Name,
		"serial", certificate.Serial.Text(16), "notAfter", certificate.NotAfter, "first", isFirst)

	if !isFirst {
		h.Metrics.countRequest(outcomeGivenAgain)

		return
	}

	h.Metrics.countRequest(guestapi.OutcomeGiven)
	h.Recorder.Eventf(claim, nil, corev1.EventTypeNormal, ReasonCertified, "Certify",
		"signed the device identity certificate of the machine: serial %s, valid until %s",
		certificate.Serial.Text(16), certificate.NotAfter.UTC().Format("2006-01-02 15:04:05 MST"))
}

// loadAuthority reads the CA from its files for each request, so that the handler uses a renewed CA without
// a restart.
func (h *Handler) loadAuthority(ctx context.Context) (*devid.Authority, *guestapi.Refusal) {
	if h.Authority.CertFile == "" {
		return nil, guestapi.NewTransientRefusal(
			"the operator has no CA for device identities: set identity.devID in its configuration",
		)
	}

	authority, err := devid.Load(h.Authority, h.Clock)
	if err != nil {
		log.FromContext(ctx).Error(err, "load CA for device identities")

		return nil, guestapi.NewTransientRefusal("the operator cannot load its CA for device identities: retry later")
	}

	return authority, nil
}

func newInvalidRefusal(message string) *guestapi.Refusal {
	return guestapi.NewTerminalRefusal(http.StatusBadRequest, outcomeInvalid, guest.ReasonAttestationRefused, message)
}

// decodeRequest decodes the body strictly: it refuses unknown fields, trailing data, bodies above maxBody
// and a missing public area. Its messages quote nothing from the body, which an untrusted machine has
// written.
func decodeRequest(w http.ResponseWriter, r *http.Request) (guest.DevIDRequest, *guestapi.Refusal) {
	var request guest.DevIDRequest

	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	dec.DisallowUnknownFields()

	if err := dec.Decode(&request); err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return request, newInvalidRefusal("the request body is too large")
		}

		return request, newInvalidRefusal("the request body is not a DevIDRequest in JSON")
	}

	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return request, newInvalidRefusal("the request body has data after the DevIDRequest")
	}

	if len(request.Public) == 0 {
		return request, newInvalidRefusal("the request has no public area of a key")
	}

	return request, nil
}

func encodeChain(certificate devid.Certificate) string {
	var out strings.Builder
	for _, der := range certificate.Chain {
		out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	}

	return out.String()
}
