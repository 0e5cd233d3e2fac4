// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vmspec

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// ClaimCode returns the code with which the claim's machine authenticates its one request for a credential.
// The operator derives the code from its key; no object in the cluster stores it. The claim code
// cannot be derived from the report token without the key, and the report token cannot be derived from the
// claim code.
func ClaimCode(key []byte, namespace, name string, uid types.UID) string {
	return deriveCode(key, "credential", namespace, name, uid)
}

// ReportToken returns the token with which the claim's machine authenticates its reports.
func ReportToken(key []byte, namespace, name string, uid types.UID) string {
	return deriveCode(key, "report", namespace, name, uid)
}

// deriveCode returns the HMAC-SHA256 of the purpose and the claim, in hexadecimal.
func deriveCode(key []byte, purpose, namespace, name string, uid types.UID) string {
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s\x00%s\x00%s\x00%s", purpose, namespace, name, uid)

	return hex.EncodeToString(mac.Sum(nil))
}

// ReportPath returns the path, below the operator's URL, of the endpoint that receives the reports of the
// claim's machine.
func ReportPath(claim *v1alpha1.MachineClaim) string {
	return fmt.Sprintf("/machines/%s/%s/%s/report", claim.Namespace, claim.Name, claim.UID)
}

// CredentialPath returns the path, below the operator's URL, of the endpoint that issues the credential of
// the claim's machine.
func CredentialPath(claim *v1alpha1.MachineClaim) string {
	return fmt.Sprintf("/machines/%s/%s/%s/credential", claim.Namespace, claim.Name, claim.UID)
}
