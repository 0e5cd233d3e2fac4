// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Claims are the claims of a JSON web token used here and by GitHub Apps.
// Issuer is kept raw: GitHub Apps send a number or a client id.
type Claims struct {
	Issuer    json.RawMessage `json:"iss,omitempty"`
	Subject   string          `json:"sub,omitempty"`
	Audience  string          `json:"aud,omitempty"`
	IssuedAt  json.Number     `json:"iat,omitempty"`
	Expires   json.Number     `json:"exp,omitempty"`
	TokenUUID string          `json:"jti,omitempty"`
}

// ErrToken says that a text is no RS256 token of the expected key.
var ErrToken = errors.New("JSON web token could not be decoded")

// IssuerText returns the issuer without quotes.
func (c Claims) IssuerText() string { return strings.Trim(string(c.Issuer), `"`) }

// Sign returns an RS256 JSON web token.
func Sign(key *rsa.PrivateKey, claims Claims) (string, error) {
	body, err := json.Marshal(claims)
	if err != nil {
		return "", fmt.Errorf("encode claims: %w", err)
	}
	enc := base64.RawURLEncoding
	signed := enc.EncodeToString([]byte(`{"alg":"RS256","typ":"JWT"}`)) + "." + enc.EncodeToString(body)
	sum := sha256.Sum256([]byte(signed))
	sig, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	return signed + "." + enc.EncodeToString(sig), nil
}

// ParseClaims reads the claims without checking the signature.
func ParseClaims(token string) (Claims, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 || strings.ContainsAny(token, "\r\n") {
		return Claims{}, ErrToken
	}
	var header struct {
		Alg string `json:"alg"`
	}
	var claims Claims
	for part, into := range map[string]any{parts[0]: &header, parts[1]: &claims} {
		raw, err := base64.RawURLEncoding.Strict().DecodeString(part)
		if err != nil || json.Unmarshal(raw, into) != nil {
			return Claims{}, ErrToken
		}
	}
	if header.Alg != "RS256" {
		return Claims{}, ErrToken
	}
	return claims, nil
}

// Verify checks an RS256 signature and returns the claims. Times are not checked.
func Verify(key *rsa.PublicKey, token string) (Claims, error) {
	claims, err := ParseClaims(token)
	if err != nil {
		return Claims{}, err
	}
	cut := strings.LastIndexByte(token, '.')
	sig, err := base64.RawURLEncoding.Strict().DecodeString(token[cut+1:])
	if err != nil {
		return Claims{}, ErrToken
	}
	sum := sha256.Sum256([]byte(token[:cut]))
	if err := rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], sig); err != nil {
		return Claims{}, ErrToken
	}
	return claims, nil
}
