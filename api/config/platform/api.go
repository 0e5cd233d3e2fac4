// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import "time"

// API configures `hyperfleet-platform api`.
type API struct {
	Server   Server   `yaml:"server"`
	Database Database `yaml:"database"`
	// InsecureNoAuthentication lets the API listen for everybody without server.jwt.
	InsecureNoAuthentication bool `yaml:"insecure_no_authentication"`
	// Roles say what callers may do, by claims of their tokens. One that no entry fits may
	// do nothing, one that several fit may do what each of them allows.
	// Required with server.jwt.
	Roles []RoleBinding `yaml:"roles"`
	// Adapters may report on resources of every kind, beside those that a kind requires;
	// "*" is any name.
	Adapters []string `yaml:"adapters"`
	// Entities are the registered kinds.
	Entities []Entity `yaml:"entities"`
	// SpecSchemas is an OpenAPI document with the schemas that entities name.
	SpecSchemas string `yaml:"spec_schemas"`
	// StuckAfter is when a resource that is not reconciled counts as stuck. Default: 30m.
	StuckAfter time.Duration `yaml:"stuck_after"`
	// ChangesKept is for how long the change feed goes back. Default: 24h.
	ChangesKept time.Duration `yaml:"changes_kept"`
	Log         Log           `yaml:"log"`
}

// Server says where the API listens.
type Server struct {
	// Address of the API. Default: :8000.
	Address string `yaml:"address"`
	// HealthAddress serves /healthz and /readyz. Default: :8080.
	HealthAddress string `yaml:"health_address"`
	// MetricsAddress serves /metrics. Default: :9090.
	MetricsAddress string `yaml:"metrics_address"`
	// TLSCertFile and TLSKeyFile; without them the API speaks plain HTTP.
	TLSCertFile string `yaml:"tls_cert_file"`
	TLSKeyFile  string `yaml:"tls_key_file"`
	// JWT says whose tokens are taken. Without issuers every caller may do everything, so
	// that the API listens on loopback alone.
	JWT JWT `yaml:"jwt"`
	// Tenant says whose a resource is, and who sees it.
	Tenant Tenant `yaml:"tenant"`
}

// Database is Postgres.
type Database struct {
	// URLFile holds the connection URL, which has a password in it.
	URLFile string `yaml:"url_file"`
	// MaxConnections of this process. Default: 0, two for each of its processors and one
	// more, at least 4.
	MaxConnections int32 `yaml:"max_connections"`
	// QueryTimeout bounds each transaction. Default: 10s.
	QueryTimeout time.Duration `yaml:"query_timeout"`
}

// JWT says whose tokens are taken.
type JWT struct {
	Configs []Issuer `yaml:"configs"`
}

// Issuer is one whose tokens are taken.
type Issuer struct {
	// IssuerURL is the claim iss of its tokens.
	IssuerURL string `yaml:"issuer_url"`
	// Audience that they have to be for. Empty: any.
	Audience string `yaml:"audience"`
	// JWKCertURL or JWKCertFile has its keys, one of them.
	JWKCertURL  string `yaml:"jwk_cert_url"`
	JWKCertFile string `yaml:"jwk_cert_file"`
	// JWKCertCAFile for JWKCertURL.
	JWKCertCAFile string `yaml:"jwk_cert_ca_file"`
	// Header has the token. Default: Authorization, after the word Bearer.
	Header string `yaml:"header"`
	// IdentityClaim names the caller in created_by and the audit log. Default: sub.
	IdentityClaim string `yaml:"identity_claim"`
}

// Tenant says whose a resource is: whose the request was that created it, and of what is
// below another, that one's. A request sees and changes the resources of its tenant alone.
type Tenant struct {
	// SystemHeader marks requests for which all resources are there. Something in front of
	// the API sets it, as it does the headers of dimensions.
	SystemHeader string      `yaml:"system_header"`
	Dimensions   []Dimension `yaml:"dimensions"`
}

// Dimension is one part of whose a resource is.
type Dimension struct {
	// Key is its name in a resource's tenancy.
	Key string `yaml:"key"`
	// Claim of the token, or Header of the request, has its value: one of them.
	Claim  string `yaml:"claim"`
	Header string `yaml:"header"`
	// Required refuses requests without it. One dimension at least has to be.
	Required bool `yaml:"required"`
}

// Roles of callers. Each of them reads everything.
const (
	// RoleReader does nothing else.
	RoleReader = "reader"
	// RoleWriter creates, changes and deletes resources.
	RoleWriter = "writer"
	// RoleAdapter reports as the adapters of its entry, and holds their leases.
	RoleAdapter = "adapter"
	// RoleSentinel holds leases.
	RoleSentinel = "sentinel"
	// RoleAdmin does what a writer does, and removes resources by force.
	RoleAdmin = "admin"
)

// RoleBinding gives a role to the callers with a claim.
type RoleBinding struct {
	// Role is reader, writer, adapter, sentinel or admin.
	Role string `yaml:"role"`
	// Issuer is the issuer_url whose tokens are meant. Required where there are several: a
	// claim of one issuer says nothing about another's callers.
	Issuer string `yaml:"issuer"`
	// Claim of the token: a text, or a list of them. Dots lead into a claim that is an
	// object: realm_access.roles. Default: the claim with the caller's name.
	Claim string `yaml:"claim"`
	// Values of which the claim has to have one; "*" is any.
	Values []string `yaml:"values"`
	// Adapters are the names that callers with the role adapter report as, and AdapterClaim
	// is the claim with such a name: one of the two.
	Adapters     []string `yaml:"adapters"`
	AdapterClaim string   `yaml:"adapter_claim"`
	// AllTenants has its callers see the resources of all tenants, if all entries that fit
	// have it; what they create is nobody's, or that of what it is below.
	AllTenants bool `yaml:"all_tenants"`
}

// Entity registers a kind.
type Entity struct {
	// Kind, for example NodePool.
	Kind string `yaml:"kind"`
	// Plural is the collection in the path, for example nodepools.
	Plural string `yaml:"plural"`
	// ParentKind is the kind it is owned by, if any.
	ParentKind string `yaml:"parent_kind"`
	// OnParentDelete is restrict (default) or cascade.
	OnParentDelete string `yaml:"on_parent_delete"`
	// RequiredAdapters all have to report Available before a resource is Reconciled, and
	// Finalized before it goes.
	RequiredAdapters []string        `yaml:"required_adapters"`
	References       []ReferenceRule `yaml:"references"`
	// Conditions are computed from statuses by CEL.
	Conditions []MappedCondition `yaml:"conditions"`
	// SpecSchemaName is a schema of spec_schemas that specs have to satisfy.
	SpecSchemaName string `yaml:"spec_schema_name"`
	// RequireSpecSchema refuses to start without the schema.
	RequireSpecSchema bool `yaml:"require_spec_schema"`
	// NameMinLen and NameMaxLen bound names. Default: 1 and 63.
	NameMinLen int `yaml:"name_min_len"`
	NameMaxLen int `yaml:"name_max_len"`
}

// ReferenceRule allows references of one type.
type ReferenceRule struct {
	RefType    string `yaml:"ref_type"`
	TargetKind string `yaml:"target_kind"`
	// Min and Max bound their number. Max 0: any number.
	Min int `yaml:"min"`
	Max int `yaml:"max"`
	// Weak references do not keep their target: it may be deleted, and the resource that
	// refers to it is then not Reconciled (reason ReferenceMissing) until it is changed.
	// Others answer the deletion of their target with 409.
	Weak bool `yaml:"weak"`
}

// MappedCondition is a condition of resources computed from statuses.
type MappedCondition struct {
	Type   string          `yaml:"type"`
	When   Expression      `yaml:"when"`
	Output ConditionOutput `yaml:"output"`
}

// ConditionOutput is what the condition says where its gate holds.
type ConditionOutput struct {
	Status  Expression `yaml:"status"`
	Reason  Expression `yaml:"reason"`
	Message Expression `yaml:"message"`
}

// Expression is CEL over statuses and resource.
type Expression struct {
	Expression string `yaml:"expression"`
}

// Log says what is logged.
type Log struct {
	// Level is debug, info, warn or error. Default: info.
	Level string `yaml:"level"`
	// Format is json or text. Default: json.
	Format string `yaml:"format"`
}
