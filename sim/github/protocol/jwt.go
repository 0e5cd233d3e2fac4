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

// Claims are the claims of a JSON web token of a runner or a GitHub App. Issuer is raw JSON,
// because GitHub Apps send a number or a client id.
type Claims struct {
	Issuer    json.RawMessage `json:"iss,omitempty"`
	Subject   string          `json:"sub,omitempty"`
	Audience  string          `json:"aud,omitempty"`
	IssuedAt  json.Number     `json:"iat,omitempty"`
	ExpiresAt json.Number     `json:"exp,omitempty"`
	TokenUUID string          `json:"jti,omitempty"`
}

// ErrInvalidToken is the error for a text that is not an RS256 token of the expected key.
var ErrInvalidToken = errors.New("JSON web token could not be decoded")

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

// ParseClaims parses the claims of a token. It does not verify the signature.
func ParseClaims(token string) (Claims, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 || strings.ContainsAny(token, "\r\n") {
		return Claims{}, ErrInvalidToken
	}
	var header struct {
		Alg string `json:"alg"`
	}
	var claims Claims
	for section, target := range map[string]any{parts[0]: &header, parts[1]: &claims} {
		raw, err := base64.RawURLEncoding.Strict().DecodeString(section)
		if err != nil || json.Unmarshal(raw, target) != nil {
			return Claims{}, ErrInvalidToken
		}
	}
	if header.Alg != "RS256" {
		return Claims{}, ErrInvalidToken
	}
	return claims, nil
}

// Verify verifies the RS256 signature of a token and returns its claims. It does not check the
// times.
func Verify(key *rsa.PublicKey, token string) (Claims, error) {
	claims, err := ParseClaims(token)
	if err != nil {
		return Claims{}, err
	}
	dot := strings.LastIndexByte(token, '.')
	sig, err := base64.RawURLEncoding.Strict().DecodeString(token[dot+1:])
	if err != nil {
		return Claims{}, ErrInvalidToken
	}
	sum := sha256.Sum256([]byte(token[:dot]))
	if err := rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], sig); err != nil {
		return Claims{}, ErrInvalidToken
	}
	return claims, nil
}
