package tables

// Role is a kind of program that uses the tables.
type Role string

// The roles. A server needs no scan: that is for replay, export and repair.
const (
	Server   Role = "server"
	Worker   Role = "worker"
	Operator Role = "operator" // apply and verify
)

// Actions are the actions of IAM that a role needs on the tables, and no more, in
// order. A transaction needs those of its writes.
func Actions(r Role) []string {
	switch r {
	case Operator:
		return []string{
			"dynamodb:CreateTable", "dynamodb:DescribeContinuousBackups", "dynamodb:DescribeTable",
			"dynamodb:DescribeTimeToLive",
			"dynamodb:UpdateContinuousBackups", "dynamodb:UpdateTable", "dynamodb:UpdateTimeToLive",
		}
	case Worker:
		return []string{
			"dynamodb:BatchGetItem", "dynamodb:BatchWriteItem", "dynamodb:ConditionCheckItem", "dynamodb:DeleteItem",
			"dynamodb:DescribeContinuousBackups", "dynamodb:DescribeTable",
			"dynamodb:GetItem",
			"dynamodb:PutItem", "dynamodb:Query", "dynamodb:Scan", "dynamodb:UpdateItem",
		}
	}
	return []string{
		"dynamodb:BatchGetItem", "dynamodb:BatchWriteItem", "dynamodb:ConditionCheckItem", "dynamodb:DeleteItem",
		"dynamodb:GetItem",
		"dynamodb:PutItem", "dynamodb:Query", "dynamodb:UpdateItem",
	}
}
