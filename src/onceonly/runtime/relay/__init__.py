"""The relay: sends what committed records still have pending."""
